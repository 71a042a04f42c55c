// hydrant: the command line client. Output text goes to stdout, all else to stderr. Exit codes: 0
// success, 1 failure, 2 invalid request, 3 no server, or one that is starting or stopping, 130
// interrupted pull.
#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "client/batch_command.h"
#include "client/chat_session.h"
#include "client/connection.h"
#include "client/context_command.h"
#include "client/event_printer.h"
#include "client/pull_command.h"
#include "client/request_flags.h"
#include "client/rpc_error.h"
#include "client/server_info.h"
#include "kernels/standard_streams.h"

namespace hydrant {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitNoServer = 3;

struct ClientFlags {
  std::string address = "127.0.0.1:50051";
  AccessFlags access;
  double wait_s = 0;
  bool json = false;
  bool quiet = false;
  RequestFlags request;
  std::string system;
  std::string tools_file;  // for chat
  std::optional<std::string> template_kwargs;
  std::vector<std::string> words;  // the message of chat, the text of tokenize and embed
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::vector<uint32_t> ids;
  ContextFlags context;
  std::string policy;  // policy for `info`
  std::string model;   // model for `pull`
  std::string explain_file;
  bool plain = false, no_special = false, keep_special = false;
  std::string pooling = "last";
  std::optional<uint32_t> dimensions;
  bool no_normalize = false;
};

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string ReadAll(std::istream& stream) {
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// The contents of a file, or of stdin.
std::optional<std::string> ReadPromptFile(const std::string& name) {
  if (name.empty() || name == "-") return ReadAll(std::cin);
  std::ifstream file(name, std::ios::binary);
  if (!file) {
    PrintErr("hydrant: cannot read {}\n", name);
    return std::nullopt;
  }
  return ReadAll(file);
}

int Report(const grpc::Status& status, const Connection& connection) {
  if (!status.ok()) PrintErr("hydrant: {}\n", DescribeError(status, connection.address()));
  return ExitCodeOf(status);
}

PrintOptions Printing(const ClientFlags& flags) {
  return {.json = flags.json,
          .quiet = flags.quiet,
          .show_context = flags.request.keep,
          .timeout_s = flags.request.timeout_s,
          .resume = flags.request.resume,
          .explain_file = flags.explain_file};
}

// Checks before anything is generated; leaves no file behind.
bool CanWritePage(const std::string& file) {
  if (file.empty()) return true;
  std::error_code ignored;
  const bool existed = std::filesystem::exists(file, ignored);
  const bool writable = std::ofstream(file, std::ios::app).good();
  if (writable && !existed) std::filesystem::remove(file, ignored);
  if (!writable) PrintErr("hydrant: cannot write --explain-cache {}\n", file);
  return writable;
}

// Whether standard input is a pipe, a file or a socket: not a terminal, not /dev/null.
bool IsPipedIn() {
  struct stat input {};
  return fstat(STDIN_FILENO, &input) == 0 &&
         (S_ISFIFO(input.st_mode) || S_ISREG(input.st_mode) || S_ISSOCK(input.st_mode));
}

// Prints a hint after a second without input: another process may hold the pipe open by mistake.
void SayThatItWaits() {
  constexpr int kPatienceMs = 1000;
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&input, 1, kPatienceMs) == 0)
    PrintErr("hydrant: waits for the text that is piped in; </dev/null asks without one\n");
}

// The text of the prompt file or of standard input, then the words of the command line: models
// expect the question last. nullopt: the file cannot be read. REQUIRES: words, or a file
std::optional<std::string> ReadMessage(const ClientFlags& flags) {
  const std::string question = Join(flags.words);
  if (flags.prompt_file.empty()) {
    if (!IsPipedIn()) return question;
    SayThatItWaits();
  }
  std::optional<std::string> text = ReadPromptFile(flags.prompt_file);
  if (!text.has_value()) return std::nullopt;
  text->erase(text->find_last_not_of(" \t\r\n") + 1);
  if (text->empty() || question.empty()) return text->empty() ? question : *text;
  return *text + "\n\n" + question;
}

int Chat(Connection* connection, const ClientFlags& flags) {
  if (!CanWritePage(flags.explain_file)) return kExitUsage;
  v1::GenerateRequest request = MakeRequest(flags.request);
  if (flags.template_kwargs.has_value())
    request.mutable_chat()->set_template_kwargs_json(*flags.template_kwargs);
  if (!flags.tools_file.empty()) {
    std::ifstream file(flags.tools_file, std::ios::binary);
    if (!file) {
      PrintErr("hydrant: cannot read --tools {}\n", flags.tools_file);
      return kExitUsage;
    }
    request.mutable_chat()->set_tools_json(ReadAll(file));
  }
  if (request.has_context()) request.mutable_chat()->set_continues_context(true);
  if (flags.words.empty() && flags.prompt_file.empty())
    return ChatInteractively(connection, request, flags.system, Printing(flags));
  const std::optional<std::string> message = ReadMessage(flags);
  if (!message.has_value()) return kExitUsage;
  return ChatOnce(connection, request, flags.system, *message, Printing(flags));
}

int Generate(Connection* connection, const ClientFlags& flags) {
  if (!CanWritePage(flags.explain_file)) return kExitUsage;
  v1::GenerateRequest request = MakeRequest(flags.request);
  if (!flags.ids.empty()) {
    request.mutable_token_ids()->mutable_ids()->Assign(flags.ids.begin(), flags.ids.end());
  } else {
    std::optional<std::string> prompt = flags.prompt;
    if (!flags.words.empty()) prompt = Join(flags.words);
    if (!prompt.has_value()) prompt = ReadPromptFile(flags.prompt_file);
    if (!prompt.has_value()) return kExitUsage;
    request.set_text(*prompt);
  }
  return ExitCodeOf(GenerateAndPrint(connection, request, Printing(flags), nullptr));
}

int Batch(Connection* connection, const ClientFlags& flags) {
  const std::optional<std::string> lines = ReadPromptFile(flags.prompt_file);
  if (!lines.has_value()) return kExitUsage;
  return RunBatch(connection, *lines, flags.request, flags.quiet);
}

int Embed(Connection* connection, const ClientFlags& flags) {
  v1::EmbedRequest request;
  if (!flags.ids.empty()) {
    request.mutable_token_ids()->mutable_ids()->Assign(flags.ids.begin(), flags.ids.end());
  } else {
    request.set_text(flags.words.empty() ? ReadAll(std::cin) : Join(flags.words));
  }
  request.set_pooling(flags.pooling == "mean" ? v1::POOLING_MEAN : v1::POOLING_LAST);
  request.set_normalize(!flags.no_normalize);
  if (flags.dimensions.has_value()) request.set_dimensions(*flags.dimensions);
  v1::EmbedResponse response;
  grpc::ClientContext context;
  const grpc::Status status = connection->stub().Embed(&context, request, &response);
  if (!status.ok()) return Report(status, *connection);
  if (flags.json) {
    PrintJson(response);
    return 0;
  }
  PrintOut("{}\n", fmt::join(response.embedding(), " "));
  if (!flags.quiet) {
    PrintErr("[{} tokens, {} dimensions]\n", response.usage().prompt_tokens(),
             response.embedding_size());
  }
  return 0;
}

int Tokenize(Connection* connection, const ClientFlags& flags) {
  v1::TokenizeRequest request;
  request.set_text(flags.words.empty() ? ReadAll(std::cin) : Join(flags.words));
  if (flags.no_special) request.set_add_special_tokens(false);
  if (flags.plain) request.set_parse_special_tokens(false);
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = connection->stub().Tokenize(&context, request, &response);
  if (!status.ok()) return Report(status, *connection);
  if (flags.json) {
    PrintJson(response);
    return 0;
  }
  PrintOut("{}\n", fmt::join(response.token_ids(), " "));
  PrintErr("[{} tokens]\n", response.token_ids_size());
  return 0;
}

int Detokenize(Connection* connection, const ClientFlags& flags) {
  v1::DetokenizeRequest request;
  request.mutable_token_ids()->Assign(flags.ids.begin(), flags.ids.end());
  if (flags.keep_special) request.set_skip_special_tokens(false);
  v1::DetokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = connection->stub().Detokenize(&context, request, &response);
  if (!status.ok()) return Report(status, *connection);
  if (flags.json) {
    PrintJson(response);
  } else {
    PrintOut("{}\n", response.text());
  }
  return 0;
}

void AddExplainFlag(CLI::App* app, ClientFlags* flags) {
  app->add_option("--explain-cache", flags->explain_file,
                  "Write a page (HTML) with the prompt, shaded by the entries that its cache kept; "
                  "of a conversation, the last answer's");
}

CLI::App* AddCommands(CLI::App* app, ClientFlags* flags) {
  app->require_subcommand(1);
  app->fallthrough();
  app->add_option("--address", flags->address, "Where the daemon listens")
      ->envname("HYDRANT_ADDRESS")
      ->capture_default_str();
  app->add_option("--tls-ca", flags->access.tls_ca,
                  "PEM file with the server's CA: the connection is TLS")
      ->envname("HYDRANT_TLS_CA");
  app->add_option("--tls-certificate", flags->access.tls_certificate,
                  "PEM file with a certificate of the client's own")
      ->envname("HYDRANT_TLS_CERTIFICATE");
  app->add_option("--tls-key", flags->access.tls_key, "PEM file with its private key")
      ->envname("HYDRANT_TLS_KEY");
  app->add_option("--token-file", flags->access.token_file,
                  "File with the token that the server wants; default: HYDRANT_TOKEN's")
      ->envname("HYDRANT_TOKEN_FILE");
  app->add_option("--wait", flags->wait_s, "Seconds to wait until the server is ready")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--json", flags->json, "One JSON object a line on stdout");
  app->add_flag("--quiet", flags->quiet, "No usage line on stderr");

  CLI::App* chat = app->add_subcommand("chat", "Ask a chat model once, or talk to it line by line");
  chat->add_option(
      "message", flags->words,
      "The question; what is piped in beside it stands before it. None: a conversation");
  chat->add_option("--prompt-file", flags->prompt_file,
                   "A file with the text that the question is about, or with both; -: stdin");
  chat->add_option("--system", flags->system, "A system message");
  chat->add_option("--tools", flags->tools_file,
                   "A file with a JSON array: what the model may call");
  chat->add_option("--template-kwargs", flags->template_kwargs,
                   "A JSON object of variables of the model's chat template");
  chat->add_flag_callback(
      "--no-thinking", [flags] { flags->template_kwargs = R"({"enable_thinking":false})"; },
      "The same as --template-kwargs '{\"enable_thinking\":false}'");
  AddExplainFlag(chat, flags);
  AddRequestFlags(chat, &flags->request);

  CLI::App* generate = app->add_subcommand("generate", "Continue a text");
  CLI::Option* text =
      generate->add_option("text", flags->words, "The text; default: what is piped in");
  text->excludes(generate->add_option("--prompt", flags->prompt, "The same, as an option"));
  text->excludes(
      generate->add_option("--prompt-file", flags->prompt_file, "A file with the text; -: stdin"));
  text->excludes(generate->add_option("--prompt-ids", flags->ids, "Token ids instead of text"));
  generate->add_option("--n", flags->request.num_samples,
                       "Answers, 1 to 64, each printed when it is finished; answer i is drawn with "
                       "the seed + i - 1. Default 1");
  AddExplainFlag(generate, flags);
  AddRequestFlags(generate, &flags->request);

  CLI::App* batch = app->add_subcommand(
      "batch", "Many requests in one call: a JSON object a line in, one a line out");
  batch->add_option("file", flags->prompt_file,
                    "Requests, as {\"text\": \"Once\", \"sampling\": {\"seed\": 7}}; default: "
                    "what is piped in. What a line does not set is as the options say");
  AddRequestFlags(batch, &flags->request);

  AddContextCommands(app, &flags->context);

  CLI::App* embed = app->add_subcommand("embed", "A text as a vector");
  embed->add_option("text", flags->words, "The text; default: what is piped in");
  embed->add_option("--ids", flags->ids, "Token ids instead of text");
  embed->add_option("--pooling", flags->pooling, "The last token's hidden state, or the mean")
      ->check(CLI::IsMember({"last", "mean"}))
      ->capture_default_str();
  embed->add_option("--dimensions", flags->dimensions, "The first ones alone; default: all");
  embed->add_flag("--no-normalize", flags->no_normalize, "As long as it is, not 1");

  CLI::App* tokenize = app->add_subcommand("tokenize", "Text to token ids");
  tokenize->add_option("text", flags->words, "The text; default: what is piped in");
  tokenize->add_flag("--no-special", flags->no_special, "Add no BOS or EOS");
  tokenize->add_flag("--plain", flags->plain, "Special tokens in the text are text");

  CLI::App* detokenize = app->add_subcommand("detokenize", "Token ids to text");
  detokenize->add_option("ids", flags->ids, "Token ids")->required();
  detokenize->add_flag("--keep-special-tokens", flags->keep_special, "Special tokens as text");

  CLI::App* info =
      app->add_subcommand("info", "The server, its model, pool, load and cache policies");
  info->add_option("policy", flags->policy, "Its parameters, with defaults and ranges");
  CLI::App* pull = app->add_subcommand(
      "pull", "Fetch a model of the Hugging Face hub into this machine's cache; needs no daemon");
  pull->add_option("model", flags->model,
                   "ORG/NAME[@REVISION][:FILE]; FILE is a file or a GGUF's quantisation, as "
                   "Q4_K_M. HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE count")
      ->required();
  app->add_subcommand("health", "Whether it takes requests: exit code 0 yes, 3 no");
  return app;
}

// For health checks of containers without another client of grpc.health.v1.
int Health(Connection* connection) {
  const grpc::Status serving = connection->WaitUntilServing(0);
  PrintOut("{}\n", serving.ok() ? "SERVING" : "NOT_SERVING");
  if (serving.ok()) return 0;
  PrintErr("hydrant: {}\n", serving.error_message());
  return kExitNoServer;
}

int Run(const std::string& command, const ClientFlags& flags) {
  if (command == "pull") return PullModel(flags.model, flags.json, flags.quiet);
  absl::StatusOr<Access> access = ReadAccess(flags.access);
  if (const absl::Status address = CheckAddress(flags.address); !address.ok()) access = address;
  if (!access.ok()) {
    PrintErr("hydrant: {}\n", std::string(access.status().message()));
    return kExitUsage;
  }
  Connection connection(flags.address, *std::move(access));
  if (flags.wait_s > 0) {
    const grpc::Status waited = connection.WaitUntilServing(flags.wait_s);
    if (!waited.ok()) {
      PrintErr("hydrant: no server was ready within {} s: {}\n", flags.wait_s,
               waited.error_message());
      return kExitNoServer;
    }
  }
  if (command == "chat") return Chat(&connection, flags);
  if (command == "generate") return Generate(&connection, flags);
  if (command == "batch") return Batch(&connection, flags);
  if (command == "context") {
    return RunContextCommand(&connection, flags.context, flags.json, flags.quiet, ReadPromptFile);
  }
  if (command == "embed") return Embed(&connection, flags);
  if (command == "tokenize") return Tokenize(&connection, flags);
  if (command == "detokenize") return Detokenize(&connection, flags);
  if (command == "health") return Health(&connection);
  if (!flags.policy.empty()) return PrintPolicy(&connection, flags.policy, flags.json);
  return PrintInfo(&connection, flags.json);
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) {
  gpr_set_log_function([](gpr_log_func_args*) {});  // errors are reported by status
  hydrant::ClientFlags flags;
  CLI::App app("hydrant talks to a hydrantd.", "hydrant");
  hydrant::AddCommands(&app, &flags);
  app.footer(
      "Examples:\n"
      "  hydrant chat \"What is the capital of France?\"\n"
      "  hydrant chat --policy auto --cache-ratio 0.2 --max-tokens 200 < questions.txt\n"
      "  hydrant chat --prompt-file report.txt \"What does it conclude?\"\n"
      "  hydrant generate \"Once upon a time\" --temperature 0 --max-tokens 50\n"
      "  hydrant context compress --prompt-file report.txt --name report\n"
      "  hydrant generate --context report --prompt \"In short, it says that\"\n"
      "  hydrant info --json --wait 60\n"
      "  hydrant pull HuggingFaceTB/SmolLM2-135M-Instruct");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0)
      return hydrant::EndOutput("hydrant", app.exit(error));  // --help
    hydrant::PrintErr("hydrant: {} (try --help)\n", error.what());
    return hydrant::kExitUsage;
  }
  const std::string command = app.get_subcommands().front()->get_name();
  return hydrant::EndOutput("hydrant", hydrant::Run(command, flags));
}
