// The program hydrant at a terminal and in scripts, against a server over a fake engine.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/rpc_error.h"
#include "proto/loopback.h"
#include "tests/server/http_get.h"
#include "tests/server/random_model_server.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/subprocess.h"

namespace hydrant {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct Ended {
  int code = -1;
  std::string out, err;
};

// Runs a shell command line in which "$@" stands for hydrant with these arguments.
Ended Shell(const std::string& line, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"/bin/sh", "-c", line, "sh", HYDRANT_PATH};
  all.insert(all.end(), arguments.begin(), arguments.end());
  Subprocess process(all);
  Ended ended;
  ended.code = process.Wait();
  ended.out = process.out();
  ended.err = process.err();
  return ended;
}

std::vector<std::string> At(const std::string& address, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--address", address};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Client, ResultsThatCannotBeWrittenAreNoSuccess) {
  TestServer server;
  const std::vector<std::vector<std::string>> commands = {
      {"generate", "--prompt", "x", "--max-tokens", "3"},
      {"generate", "--prompt", "x", "--max-tokens", "3", "--json"},
      {"generate", "--prompt", "x", "--max-tokens", "3", "--n", "2"},
      {"chat", "x", "--max-tokens", "3"},
      {"tokenize", "abc"},
      {"detokenize", "97"},
      {"embed", "abc"},
      {"context", "list"},
      {"info"},
      {"health"},
      {"--help"}};
  for (const auto& command : commands) {
    const Ended ended = Shell("\"$@\" >/dev/full", At(server.address(), command));
    EXPECT_EQ(ended.code, 1) << command[0] << ": " << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("hydrant: standard output: cannot be written: No space left"))
        << command[0];
  }
  const Ended batch = Shell("echo '{\"text\": \"x\"}' | \"$@\" >/dev/full",
                            At(server.address(), {"batch", "--max-tokens", "3"}));
  EXPECT_EQ(batch.code, 1);
  EXPECT_THAT(batch.err, HasSubstr("hydrant: standard output: cannot be written"));
}

// If the client cannot write an answer, it cancels the request, which ends although the engine
// is paused.
TEST(Client, EndsARequestIfOutputFails) {
  TestServer server;
  server.engine.Pause();
  server.engine.AllowSteps(6);
  const Ended ended =
      Shell("\"$@\" >/dev/full",
            At(server.address(), {"generate", "--prompt", "x", "--max-tokens", "0"}));
  EXPECT_EQ(ended.code, 1) << ended.err;
  server.engine.Resume();
  EXPECT_TRUE(server.WaitUntilEmpty());
}

// The fake engine keeps every other token of the prompt, in a half of the heads the even ones.
TEST(Client, ExplainsTheCache) {
  TestServer server;
  const std::string file = testing::TempDir() + "/explained.html";
  const std::vector<std::string> generate =
      At(server.address(),
         {"generate", "--prompt", "</script>", "--max-tokens", "3", "--explain-cache", file});
  const Ended ended = Shell("\"$@\"", generate);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("[the entries that the cache kept: " + file + "]"));
  std::ifstream stream(file);
  const std::string page(std::istreambuf_iterator<char>(stream), {});
  // "<s></script>" in base64: the first token has three bytes, nine have one. Bits 1010101010 and
  // 0101010101.
  EXPECT_THAT(page, HasSubstr(R"("texts":"PHM+PC9zY3JpcHQ+")"));
  EXPECT_THAT(page, HasSubstr(R"("lengths":[3,1,1,1,1,1,1,1,1,1])"));
  EXPECT_THAT(page, HasSubstr(R"("VQE=","qgI=")"));
  EXPECT_THAT(page, Not(HasSubstr("/*DATA*/")));

  const Ended refused = Shell(
      "\"$@\"", At(server.address(), {"chat", "x", "--explain-cache", "/nonexistent/page.html"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("cannot write --explain-cache /nonexistent/page.html"));

  const std::string never = testing::TempDir() + "/never_explained.html";
  const Ended failed = Shell("\"$@\"", At(server.address(), {"generate", "--prompt", "x", "--model",
                                                             "another", "--explain-cache", never}));
  EXPECT_NE(failed.code, 0);
  EXPECT_FALSE(std::filesystem::exists(never)) << "a failed request left an empty page";
}

TEST(Client, AFullStandardErrorLosesNoAnswer) {
  TestServer server;
  const std::vector<std::string> generate =
      At(server.address(), {"generate", "--prompt", "x", "--max-tokens", "3"});
  const Ended whole = Shell("\"$@\"", generate);
  const Ended full = Shell("\"$@\" 2>/dev/full", generate);
  EXPECT_EQ(full.code, 0);
  EXPECT_EQ(full.out, whole.out);
  EXPECT_EQ(full.out.size(), 4u);
}

TEST(Client, UsesNoProxyForThisMachine) {
  TestServer server;
  for (const char* proxy : {"http_proxy", "https_proxy", "grpc_proxy"}) {
    const Ended ended =
        Shell(std::string(proxy) + "=http://127.0.0.1:1 \"$@\"",
              At(server.address(), {"generate", "--prompt", "x", "--max-tokens", "3"}));
    EXPECT_EQ(ended.code, 0) << proxy << ": " << ended.err;
  }
  for (const char* address :
       {"127.0.0.1:50051", "127.8.9.1:1", "localhost:1", "localhost", "[::1]:1", "ipv4:127.0.0.1:1",
        "ipv6:[::1]:1", "dns:///localhost:1", "unix:/run/hydrant.sock", "unix-abstract:hydrant"}) {
    EXPECT_TRUE(IsOnThisMachine(address)) << address;
  }
  for (const char* address :
       {"10.0.0.1:1", "128.0.0.1:1", "localhost.example.org:1", "127.0.0.1.example.org:1",
        "example.org:127", "dns:///example.org:1", "[::2]:1"}) {
    EXPECT_FALSE(IsOnThisMachine(address)) << address;
  }
}

// Each connection error has its own message with a remedy.
TEST(Client, SaysWhyThereIsNoConnection) {
  const TemporaryFolder folder;
  const TestAuthority authority("CA"), other("other");
  const KeyAndCertificate own = authority.Sign("server");
  const auto certificates =
      Certificates::Load({.certificate = folder.Write("server.crt", own.certificate),
                          .key = folder.Write("server.key", own.key),
                          .client_ca = ""});
  ASSERT_TRUE(certificates.ok());
  TestServerOptions options;
  options.log_level = spdlog::level::off;
  options.grpc.certificates = *certificates;
  TestServer with_tls(options), without;
  const std::string ca = folder.Write("ca.crt", authority.certificate());
  const std::string wrong = folder.Write("other.crt", other.certificate());
  const struct {
    std::vector<std::string> flags;
    int code;
    std::string says;
  } cases[] = {
      {At(with_tls.address(), {"--tls-ca", ca}), 0, ""},
      {At(with_tls.address(), {"--tls-ca", wrong}), 3, "is not signed by the CA of --tls-ca"},
      {At(with_tls.address(), {}), 3, "hung up at once; a server with TLS wants --tls-ca"},
      {At(without.address(), {"--tls-ca", ca}), 3, "does not speak TLS; leave --tls-ca out"},
      {At("http://" + without.address(), {}), 2,
       "is a URL; gRPC takes HOST:PORT: " + without.address() + "\n"},
      {At("https://" + without.address() + "/v1", {}), 2, ", with --tls-ca FILE for TLS"},
      {At("127.0.0.1:99999", {}), 2, "port '99999' is outside [1, 65535]"},
      {At("127.0.0.1:1", {}), 3, "no server at 127.0.0.1:1; start one with"},
      {At("unix:" + folder.Path("none.sock"), {}), 3, "no server at unix:"},
  };
  for (const auto& [flags, code, says] : cases) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), {"tokenize", "abc"});
    const Ended ended = Shell("\"$@\"", all);
    EXPECT_EQ(ended.code, code) << flags[1] << ": " << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(says)) << flags[1];
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  std::vector<std::string> waits = At(with_tls.address(), {"--tls-ca", wrong, "--wait", "0.1"});
  waits.insert(waits.end(), {"tokenize", "abc"});
  EXPECT_THAT(Shell("\"$@\"", waits).err, HasSubstr("is not signed by the CA"));
}

// Connection errors that a test on one machine cannot cause, as gRPC's messages.
TEST(Client, NamesOtherFaultsOfConnections) {
  const auto says = [](const std::string& message) {
    return DescribeError({grpc::StatusCode::UNAVAILABLE, message}, "gpu.example.org:50051");
  };
  const std::string failed =
      "failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: ";
  EXPECT_THAT(says(failed + "Peer name gpu.example.org is not in peer certificate"),
              HasSubstr("is for another name"));
  EXPECT_THAT(says(failed + "HTTP proxy returned response code 403"), HasSubstr("no_proxy"));
  EXPECT_THAT(says(failed + "Failed parsing HTTP/2"), HasSubstr("is no gRPC server"));
  EXPECT_THAT(says("DNS resolution failed for gpu.example.org:50051: Domain name not found"),
              HasSubstr("no machine is known by the name"));
  EXPECT_THAT(says(failed + "No route to host"), HasSubstr("No route to host"));
  EXPECT_THAT(says("Socket closed"),
              StartsWith("the connection to gpu.example.org:50051 was lost"));
}

int64_t PromptTokens(const Ended& ended) {
  EXPECT_EQ(ended.code, 0) << ended.err;
  const size_t last = ended.out.rfind("\n{", ended.out.size() - 2) + 1;
  return nlohmann::json::parse(ended.out.substr(last)).at("usage").at("prompt_tokens");
}

// A character is a token, so the number of prompt tokens shows which text was sent.
TEST(Client, TakesTextFromArgumentsFilesAndPipes) {
  TestServer server;
  const TemporaryFolder folder;
  const std::string file = folder.Write("text.txt", "A text.\n");
  const auto ask = [&](const std::string& line, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--max-tokens", "2", "--json"});
    return PromptTokens(Shell(line, At(server.address(), arguments)));
  };
  const int64_t alone = ask("\"$@\"", {"chat", "Why?"});
  const int64_t with_text = alone + static_cast<int64_t>(std::string("A text.\n\n").size());
  EXPECT_EQ(ask("printf 'A text.\\n' | \"$@\"", {"chat", "Why?"}), with_text);
  EXPECT_EQ(ask("\"$@\" <" + file, {"chat", "Why?"}), with_text);
  EXPECT_EQ(ask("\"$@\"", {"chat", "--prompt-file", file, "Why?"}), with_text);
  EXPECT_EQ(ask("\"$@\"", {"chat", "--prompt-file", file}), with_text - 6) << "the text alone";
  EXPECT_EQ(ask("printf '' | \"$@\"", {"chat", "Why?"}), alone);
  EXPECT_EQ(ask("\"$@\"", {"generate", "Once", "upon"}),
            ask("\"$@\"", {"generate", "--prompt", "Once upon"}));
  EXPECT_EQ(ask("printf 'Once upon' | \"$@\"", {"generate"}),
            ask("\"$@\"", {"generate", "--prompt", "Once upon"}));

  const Ended both = Shell("\"$@\"", At(server.address(), {"generate", "a", "--prompt", "b"}));
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("excludes"));
  const Ended missing =
      Shell("\"$@\"", At(server.address(), {"chat", "--prompt-file", "/none.txt", "Why?"}));
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("cannot read /none.txt"));
}

TEST(Client, SaysWhenAPipeBringsNothing) {
  TestServer server;
  const TemporaryFolder folder;
  const std::string pipe = folder.Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int held_open = open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  {
    Subprocess chat({"/bin/sh", "-c", "exec \"$@\" <" + pipe, "sh", HYDRANT_PATH, "--address",
                     server.address(), "chat", "Why?"});
    EXPECT_THAT(chat.WaitForErrorLine("waits for"), HasSubstr("</dev/null asks without one"));
  }
  close(held_open);
}

TEST(Client, TheUsageLineHasTheMeanOfTheHeads) {
  TestServerOptions many;  // 49 heads: the mean of equal heads must stay exact
  many.limits.num_layers = 7;
  many.limits.num_kv_heads = 7;
  TestServer server, of_many_heads(many);
  EXPECT_THAT(Shell("\"$@\"", At(of_many_heads.address(),
                                 {"generate", "--prompt", "abc", "--max-tokens", "9"}))
                  .err,
              HasSubstr("KV kept all 12 tokens, "));
  const std::string prompt(400, 'x');
  const auto ask = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--prompt", prompt, "--max-tokens", "2"});
    return Shell("\"$@\"", At(server.address(), more)).err;
  };
  // 401 prompt tokens and 1 generated token; 4 heads of 26 pages of 1 KiB each.
  EXPECT_THAT(ask({}), HasSubstr("KV kept all 402 tokens, 104 KiB, "));
  // 20 % of the tokens, but at least 128: 8 pages a head, and 2 pages in all for their scores.
  EXPECT_THAT(
      ask({"--policy", "h2o"}),
      HasSubstr("KV kept 128 of 402 tokens a head (32 %; the fullest 128), 34 KiB where full "
                "would hold 104 KiB"));
}

TEST(Client, AConversationThatIsFullHasAWayOn) {
  TestServer server;  // 2,048 tokens
  const std::string ask = "printf '%0700d\\n' 1";
  const auto chat = [&](const std::string& lines) {
    return Shell("{ " + lines + "; } | \"$@\"",
                 At(server.address(), {"chat", "--max-tokens", "300", "--quiet"}));
  };
  const std::string two = ask + "; " + ask;
  const Ended fits = chat(two);
  EXPECT_EQ(fits.code, 0) << fits.err;
  const Ended full = chat(two + "; " + ask);
  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.err, HasSubstr("max_model_len"));
  EXPECT_THAT(full.err, HasSubstr("/drop forgets its older half and asks again"));
  EXPECT_EQ(full.out.size(), fits.out.size());
  const Ended dropped = chat(two + "; " + ask + "; echo /drop");
  EXPECT_EQ(dropped.code, 0) << dropped.err;
  EXPECT_THAT(dropped.err, HasSubstr("forgot the 1 oldest of 2 questions and answers"));
  EXPECT_EQ(dropped.out.size(), fits.out.size() / 2 * 3);
  const Ended cleared = chat(two + "; echo /clear; " + ask);
  EXPECT_EQ(cleared.code, 0) << cleared.err;
  EXPECT_THAT(chat("printf '%03000d\\n' 1").err, HasSubstr("the message alone is too long"));
  EXPECT_THAT(chat("echo /drop").err, HasSubstr("there is nothing to forget"));
}

std::string AddressOf(const RandomModelServer& server) {
  return absl::StrCat("127.0.0.1:", server.server->port());
}

constexpr char kTealDoor[] = " The door of the harbour is painted teal.";

// Recall begins with the second turn. The user names no context.
TEST(Client, AChatReadsPassagesOfEarlierTurnsAgain) {
  RandomModelServer server(4);
  const auto chat = [&](const std::string& lines, std::vector<std::string> more) {
    more.insert(more.begin(), {"chat", "--max-tokens", "4", "--temperature", "0", "--policy", "h2o",
                               "--max-cache-tokens", "64"});
    return Shell("{ " + lines + "; } | \"$@\"", At(AddressOf(server), more));
  };
  const std::string text = std::string("printf '%0300d") + kTealDoor + " %0300d\\n' 1 1; ";
  const std::string asks = text + "echo 'Which doors?'; echo 'Well'; echo 'And the harbour?'";
  const Ended recalls = chat(asks, {"--recall-tokens", "128"});
  EXPECT_EQ(recalls.code, 0) << recalls.err;
  const std::vector<std::string> turns = absl::StrSplit(recalls.err, " new tokens;");
  ASSERT_EQ(turns.size(), 5) << recalls.err;
  EXPECT_THAT(turns[0], Not(HasSubstr("recalled")));
  EXPECT_THAT(turns[1], ContainsRegex("prompt \\([0-9]+ cached, [0-9]+ recalled\\)"));
  EXPECT_THAT(turns[2], Not(HasSubstr("recalled"))) << "no word of the text";
  EXPECT_THAT(turns[3], ContainsRegex("prompt \\([0-9]+ cached, [0-9]+ recalled\\)"));
  EXPECT_THAT(chat(asks, {}).err, Not(HasSubstr("recalled")));
  // /clear drops the kept cache: the next message is a first turn, which recalls nothing.
  const Ended cleared = chat(text + "echo /clear; echo 'Which doors?'", {"--recall-tokens", "128"});
  EXPECT_EQ(cleared.code, 0) << cleared.err;
  EXPECT_THAT(cleared.err, Not(HasSubstr("recalled")));
}

TEST(Client, AChatSaysThatRecallNeedsAKeptCache) {
  TestServer server;  // keeps no contexts
  const auto chat = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"chat", "--max-tokens", "4"});
    return Shell("printf 'One\\nTwo\\n' | \"$@\"", At(server.address(), more));
  };
  const Ended recalls = chat({"--recall-tokens", "128"});
  EXPECT_EQ(recalls.code, 0) << recalls.err;
  const std::vector<std::string> told =
      absl::StrSplit(recalls.err, "--recall-tokens does nothing: the server kept no cache");
  EXPECT_EQ(told.size(), 2) << recalls.err;
  EXPECT_THAT(chat({}).err, Not(HasSubstr("--recall-tokens")));
}

// The program hydrant on a pseudoterminal.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments) {
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    winsize size = {.ws_row = 40, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    setenv("TERM", "xterm", 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Terminal() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    close(fd_);
  }

  void Type(const std::string& text) const {
    EXPECT_EQ(write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Types when libedit reads single keys, which it does after showing a prompt. Earlier, the
  // terminal would handle Ctrl-D itself.
  void TypeAtPrompt(const std::string& text) const {
#ifdef HYDRANT_EDITLINE
    EXPECT_TRUE(WaitFor([this] {
      termios settings{};
      return tcgetattr(fd_, &settings) == 0 && (settings.c_lflag & ICANON) == 0;
    }));
#endif
    Type(text);
  }
  // The output since the last call, up to and including `text`. Fails after 30 s without output.
  std::string ShownUntil(const std::string& text) {
    size_t at = std::string::npos;
    while ((at = shown_.find(text)) == std::string::npos && ReadSome()) {
    }
    EXPECT_NE(at, std::string::npos) << "'" << text << "' is not in: " << shown_;
    const size_t end = at == std::string::npos ? shown_.size() : at + text.size();
    const std::string part = shown_.substr(0, end);
    shown_.erase(0, end);
    return part;
  }
  // The exit code; 128 + n after signal n. Fails after 30 s without output or end.
  int Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == 0 &&
        !WaitFor([&] { return waitpid(pid_, &status, WNOHANG) != 0; })) {
      ADD_FAILURE() << "it does not end; shown last: " << shown_;
      return -1;  // the destructor kills it
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  bool ReadSome() {
    pollfd ready = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 30'000) <= 0) return false;
    std::array<char, 4096> buffer;
    const ssize_t count = read(fd_, buffer.data(), buffer.size());
    if (count > 0) shown_.append(buffer.data(), static_cast<size_t>(count));
    return count > 0;
  }

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string shown_;
};

TEST(Client, CtrlCEndsTheAnswerAndNotTheConversation) {
  TestServer server;
  Terminal chat({HYDRANT_PATH, "--address", server.address(), "chat", "--max-tokens", "0"});
  EXPECT_THAT(chat.ShownUntil("> "), HasSubstr("Ctrl-C ends an answer"));
  server.engine.Pause();
  server.engine.AllowSteps(20);
  chat.Type("hello\n");
  chat.ShownUntil("klm");  // in the middle of the answer, which is the alphabet
  chat.Type("\x03");
  chat.ShownUntil("> ");
  server.engine.Resume();
  EXPECT_TRUE(server.WaitUntilEmpty());
  chat.Type("/clear\n");
  chat.ShownUntil("> ");
  chat.TypeAtPrompt("\x04");
  EXPECT_EQ(chat.Wait(), 0);
}

TEST(Client, CtrlCAtThePromptEndsTheConversation) {
  TestServer server;
  Terminal chat({HYDRANT_PATH, "--address", server.address(), "chat", "--max-tokens", "20"});
  chat.ShownUntil("> ");
  chat.Type("hello\n");
  chat.ShownUntil("tok/s");
  chat.ShownUntil("> ");
  chat.Type("\x03");  // no answer is running
  EXPECT_EQ(chat.Wait(), 128 + SIGINT);
}

TEST(Client, AChatWhoseCacheIsGoneReadsAllOfItAgain) {
  RandomModelServer server(4);
  Terminal chat({HYDRANT_PATH, "--address", AddressOf(server), "chat", "--temperature", "0",
                 "--max-tokens", "4", "--recall-tokens", "128"});
  chat.ShownUntil("> ");
  chat.Type(kTealDoor + std::string("\n"));
  chat.ShownUntil("tok/s");
  chat.ShownUntil("> ");
  grpc::ClientContext listing;
  v1::ListContextsResponse list;
  ASSERT_TRUE(server.stub->ListContexts(&listing, {}, &list).ok());
  ASSERT_EQ(list.contexts_size(), 1);
  grpc::ClientContext deleting;
  v1::DeleteContextRequest request;
  request.set_handle(list.contexts(0).handle());
  v1::DeleteContextResponse deleted;
  ASSERT_TRUE(server.stub->DeleteContext(&deleting, request, &deleted).ok());
  chat.Type("Which doors?\n");
  chat.ShownUntil("the conversation's cache is gone");
  chat.ShownUntil("tok/s");
  chat.ShownUntil("> ");
  chat.TypeAtPrompt("\x04");
  EXPECT_EQ(chat.Wait(), 0);
}

// While no line is being read the terminal handles Ctrl-D itself.
TEST(Client, CtrlDDuringAnAnswerEndsTheConversationAfterIt) {
  TestServer server;
  Terminal chat({HYDRANT_PATH, "--address", server.address(), "chat", "--max-tokens", "20"});
  chat.ShownUntil("> ");
  server.engine.Pause();
  server.engine.AllowSteps(10);
  chat.Type("hello\n");
  chat.ShownUntil("def");
  chat.Type("\x04");
  server.engine.Resume();
  EXPECT_EQ(chat.Wait(), 0);
}

TEST(Client, LinesAreCalledBackAndEdited) {
#ifndef HYDRANT_EDITLINE
  GTEST_SKIP() << "hydrant was built without libedit";
#endif
  TestServer server;
  Terminal chat({HYDRANT_PATH, "--address", server.address(), "chat", "--max-tokens", "2"});
  chat.ShownUntil("> ");
  chat.Type("wonderful\n");
  chat.ShownUntil("tok/s");
  chat.ShownUntil("> ");
  chat.Type("\x1b[A");  // the up arrow key
  chat.ShownUntil("wonderful");
  chat.Type("\n");
  chat.ShownUntil("tok/s");
}

}  // namespace
}  // namespace hydrant
