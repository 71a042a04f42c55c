// Named contexts over the wire: compressed, queried, listed, saved, loaded by another server,
// deleted, and refused with helpful errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "scheduler/call_on_loop.h"
#include "tests/redis_server.h"
#include "tests/scheduler/gated_store.h"
#include "tests/server/random_model_server.h"
#include "tests/store_folder.h"

namespace hydrant {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::StartsWith;

constexpr uint32_t kOutput = 12;

// As in the daemon.
[[maybe_unused]] const auto kIgnored = signal(SIGPIPE, SIG_IGN);

class Contexts : public testing::Test {
 protected:
  using Reply = v1::CompressContextResponse;

  Contexts() { spdlog::set_level(spdlog::level::warn); }

  static std::unique_ptr<RandomModelServer> MakeServer(const std::string& store = "",
                                                       uint64_t model_seed = 3) {
    auto model = MakeRandomModel(RandomModelServer::Config(0), model_seed);
    if (store.empty()) return std::make_unique<RandomModelServer>(4, std::move(model));
    auto opened = OpenContextStore(store, {});
    EXPECT_TRUE(opened.ok()) << opened.status();
    return std::make_unique<RandomModelServer>(4, std::move(model), *std::move(opened));
  }

  // A server with a store that blocks the calls held by the gate.
  static std::unique_ptr<RandomModelServer> MakeServer(const std::shared_ptr<Gate>& gate) {
    return std::make_unique<RandomModelServer>(4, MakeRandomModel(RandomModelServer::Config(0), 3),
                                               std::make_unique<GatedStore>(gate), false, nullptr,
                                               std::chrono::minutes(10));
  }

  static v1::CompressContextRequest Document(const std::string& handle, char letter = 'k',
                                             const std::string& policy = "h2o") {
    v1::CompressContextRequest request;
    request.set_text(std::string(150, letter) + "The key is 17." + std::string(150, letter));
    request.mutable_cache()->set_cache_policy(policy);
    if (policy != "full") {
      request.mutable_cache()->set_cache_ratio(0.2);
      request.mutable_cache()->set_min_cache_tokens(16);
    }
    if (!handle.empty()) request.set_handle(handle);
    return request;
  }
  // The context "text", which has a line between two others.
  static v1::CompressContextRequest DocumentAround(const std::string& line) {
    v1::CompressContextRequest request;
    request.set_text(std::string(60, 'k') + "\n" + line + std::string(60, 'x') + "\n");
    request.mutable_cache()->set_cache_policy("h2o");
    request.mutable_cache()->set_cache_ratio(0.2);
    request.mutable_cache()->set_min_cache_tokens(16);
    request.set_handle("text");
    return request;
  }
  static v1::GenerateRequest Question(const std::string& handle, const std::string& text = "key?") {
    v1::GenerateRequest request = TextRequest(text, kOutput);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_sampling()->set_temperature(0);
    request.set_context(handle);
    return request;
  }
  template <typename Request>
  static Request Naming(const std::string& handle, const std::string& salt = "") {
    Request request;
    request.set_handle(handle);
    if (!salt.empty()) request.set_cache_salt(salt);
    return request;
  }

  static grpc::Status Compress(RandomModelServer& server, const v1::CompressContextRequest& request,
                               Reply* reply) {
    grpc::ClientContext context;
    return server.stub->CompressContext(&context, request, reply);
  }
  static Reply Compressed(RandomModelServer& server, const v1::CompressContextRequest& request) {
    Reply reply;
    const grpc::Status status = Compress(server, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  static grpc::Status Get(RandomModelServer& server, const std::string& handle,
                          v1::Context* found = nullptr, const std::string& salt = "") {
    grpc::ClientContext context;
    v1::Context ignored;
    return server.stub->GetContext(&context, Naming<v1::GetContextRequest>(handle, salt),
                                   found == nullptr ? &ignored : found);
  }
  static grpc::Status Delete(RandomModelServer& server, const std::string& handle) {
    grpc::ClientContext context;
    v1::DeleteContextResponse response;
    return server.stub->DeleteContext(&context, Naming<v1::DeleteContextRequest>(handle),
                                      &response);
  }
  static grpc::Status Save(RandomModelServer& server, const std::string& handle,
                           v1::Context* saved = nullptr) {
    grpc::ClientContext context;
    v1::Context ignored;
    return server.stub->SaveContext(&context, Naming<v1::SaveContextRequest>(handle),
                                    saved == nullptr ? &ignored : saved);
  }
  static grpc::Status Load(RandomModelServer& server, const std::string& handle,
                           v1::Context* loaded = nullptr) {
    grpc::ClientContext context;
    v1::Context ignored;
    return server.stub->LoadContext(&context, Naming<v1::LoadContextRequest>(handle),
                                    loaded == nullptr ? &ignored : loaded);
  }
  static std::vector<v1::Context> List(RandomModelServer& server, const std::string& salt = "") {
    grpc::ClientContext context;
    v1::ListContextsRequest request;
    if (!salt.empty()) request.set_cache_salt(salt);
    v1::ListContextsResponse list;
    const grpc::Status status = server.stub->ListContexts(&context, request, &list);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {list.contexts().begin(), list.contexts().end()};
  }
  static std::string HandlesOf(const std::vector<v1::Context>& contexts) {
    std::string handles;
    for (const v1::Context& context : contexts) handles += context.handle() + " ";
    return handles;
  }
  static StreamResult Ask(RandomModelServer& server, const v1::GenerateRequest& request) {
    StreamResult result = RunToEnd(*server.stub, request);
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    if (!result.usage.has_value()) result.usage.emplace();
    return result;
  }
  // The handle of the cache that a request kept; "": none.
  static std::string KeptBy(const StreamResult& result) {
    std::string handle;
    for (const v1::GenerateResponse& event : result.events) {
      if (event.has_finished()) handle = event.finished().context();
    }
    return handle;
  }
};

// Recall reads the line with the question's word again, exactly as a request that spells it out.
TEST_F(Contexts, PassagesAreReadAgain) {
  const auto server = MakeServer();
  const std::string line = "The door of the harbour is painted teal\n";
  const v1::CompressContextRequest document = DocumentAround(line);
  Compressed(*server, document);
  v1::GenerateRequest question = Question("text", "Which doors?");
  question.set_keep(true);
  question.set_recall_tokens(64);
  const StreamResult recalled = Ask(*server, question);
  EXPECT_EQ(recalled.usage->recalled_tokens(), line.size());
  EXPECT_EQ(recalled.usage->prompt_tokens(),
            document.text().size() + line.size() + question.text().size() + 1);  // BOS
  const StreamResult spelled_out = Ask(*server, Question("text", line + question.text()));
  EXPECT_EQ(recalled.text, spelled_out.text);
  EXPECT_EQ(spelled_out.usage->recalled_tokens(), 0);
  EXPECT_EQ(recalled.usage->prompt_tokens(), spelled_out.usage->prompt_tokens());
  EXPECT_NE(Ask(*server, Question("text", question.text())).text, recalled.text);
  const RequestMetrics& metrics = server->service->request_metrics();
  EXPECT_EQ(metrics.recalled_tokens, line.size());
  // Entries count for the context's policy, which the questions do not name.
  EXPECT_GT(metrics.evicted.Count("h2o"), 0);
  EXPECT_EQ(metrics.evicted.Count("full"), 0);
  EXPECT_EQ(metrics.kept.Count("full"), 0);
  // A lost stream is resumed behind the same passages.
  v1::GenerateRequest rest = question;
  rest.mutable_resume_token_ids()->Assign(recalled.token_ids.begin(),
                                          recalled.token_ids.begin() + 4);
  const std::vector<uint32_t> last(recalled.token_ids.begin() + 4, recalled.token_ids.end());
  EXPECT_EQ(Ask(*server, rest).token_ids, last);
  // The next turn goes on behind it.
  const StreamResult next = Ask(*server, Question(KeptBy(recalled), " And?"));
  EXPECT_GT(next.usage->prompt_tokens(), recalled.usage->prompt_tokens() + kOutput);
}

// In a chat the line stands in the user's message. The template's words find no passage, although
// the text holds the names of the roles.
TEST_F(Contexts, PassagesAreReadAgainInsideAMessage) {
  const auto server = MakeServer();
  const std::string line = "The door of the harbour is painted teal\n";
  v1::CompressContextRequest document = DocumentAround(line);
  document.set_text(document.text() + "No user and no assistant is in this long line\n");
  Compressed(*server, document);
  const auto turn = [](const std::string& content) {
    v1::GenerateRequest request = Question("text");
    request.mutable_chat()->set_continues_context(true);
    v1::ChatMessage* message = request.mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content(content);
    return request;
  };
  v1::GenerateRequest question = turn("Which doors?");
  question.set_recall_tokens(128);
  const StreamResult recalled = Ask(*server, question);
  const StreamResult spelled_out = Ask(*server, turn(line + "Which doors?"));
  EXPECT_EQ(recalled.usage->recalled_tokens(), line.size());
  EXPECT_EQ(recalled.usage->prompt_tokens(), spelled_out.usage->prompt_tokens());
  EXPECT_EQ(recalled.text, spelled_out.text);
}

TEST_F(Contexts, AreReadOnceForAnyNumberOfQuestions) {
  const auto server = MakeServer();
  const Reply reply = Compressed(*server, Document(""));
  const v1::Context& context = reply.context();
  constexpr uint32_t kTokens = 1 + 150 + 14 + 150;  // with BOS
  EXPECT_THAT(context.handle(), StartsWith("ctx-"));
  EXPECT_TRUE(context.in_memory());
  EXPECT_FALSE(context.has_stored_bytes());
  EXPECT_EQ(context.tokens(), kTokens);
  EXPECT_EQ(context.kv_entries(), server->NumHeads() * 63) << "a fifth of each head's";
  EXPECT_EQ(context.memory_bytes(),
            server->NumHeads() * 4 * (server->model.page_bytes + 16 * 3 * sizeof(float)))
      << "with room for a score and two log weights an entry";
  EXPECT_EQ(context.cache_policy(), "h2o");
  EXPECT_GT(context.retained_mass().mean(), 0.0f);
  EXPECT_LE(context.retained_mass().mean(), 1.0f);
  EXPECT_FALSE(context.has_expires_us());
  EXPECT_EQ(reply.usage().prompt_tokens(), kTokens);
  EXPECT_EQ(reply.usage().completion_tokens(), 0u);

  std::vector<std::vector<uint32_t>> answers;
  for (const char* question : {"key?", "what else?", "key?"}) {
    const StreamResult answer = Ask(*server, Question(context.handle(), question));
    EXPECT_EQ(answer.usage->cached_tokens(), kTokens);
    EXPECT_EQ(answer.usage->kv_tokens_kept(), 63u);
    EXPECT_EQ(answer.token_ids.size(), kOutput);
    answers.push_back(answer.token_ids);
  }
  EXPECT_EQ(answers[0], answers[2]) << "no question leaves anything behind";
}

TEST_F(Contexts, TakeTextsChatsAndTokens) {
  const auto server = MakeServer();
  v1::CompressContextRequest request;
  for (uint32_t i = 0; i < 100; ++i) request.mutable_token_ids()->add_ids('a' + i % 20);
  EXPECT_EQ(Compressed(*server, request).context().tokens(), 100u);
  EXPECT_EQ(Compressed(*server, request).context().cache_policy(), "auto");
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content(std::string(100, 'm'));
  const v1::Context chat = Compressed(*server, request).context();
  EXPECT_GT(chat.tokens(), 100u);
  // A chat with the same beginning may continue it.
  v1::GenerateRequest question = Question(chat.handle());
  *question.mutable_chat() = request.chat();
  v1::ChatMessage* asked = question.mutable_chat()->add_messages();
  asked->set_role("user");
  asked->set_content("well?");
  EXPECT_EQ(Ask(*server, question).usage->cached_tokens(), chat.tokens());
}

TEST_F(Contexts, AreListedByTheirSalt) {
  const auto server = MakeServer();
  Compressed(*server, Document("b"));
  Compressed(*server, Document("a"));
  v1::CompressContextRequest salted = Document("c");
  salted.mutable_cache()->set_cache_salt("another's");
  Compressed(*server, salted);
  EXPECT_EQ(HandlesOf(List(*server)), "a b ");
  EXPECT_EQ(HandlesOf(List(*server, "another's")), "c ");
  EXPECT_EQ(HandlesOf(List(*server, "nobody's")), "");
  EXPECT_EQ(Get(*server, "c").error_code(), StatusCode::NOT_FOUND);
  v1::Context found;
  EXPECT_TRUE(Get(*server, "c", &found, "another's").ok());
  EXPECT_EQ(found.handle(), "c");
}

TEST_F(Contexts, OneOfTheSameHandleIsReplaced) {
  const auto server = MakeServer();
  Compressed(*server, Document("a", 'k'));
  const std::vector<uint32_t> old = Ask(*server, Question("a")).token_ids;
  v1::CompressContextRequest longer = Document("a", 'z');
  longer.set_text(longer.text() + longer.text());
  Compressed(*server, longer);
  const std::vector<v1::Context> list = List(*server);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].tokens(), 1 + longer.text().size());
}

TEST_F(Contexts, ExpireAtTheirTime) {
  const auto server = MakeServer();
  v1::CompressContextRequest request = Document("a");
  request.set_ttl_s(1);
  const v1::Context context = Compressed(*server, request).context();
  EXPECT_EQ(context.expires_us(), context.created_us() + 1'000'000);
  request = Document("b");
  request.set_ttl_s(1000);
  Compressed(*server, request);
  EXPECT_TRUE(WaitFor([&] { return HandlesOf(List(*server)) == "b "; }));
  EXPECT_EQ(RunToEnd(*server->stub, Question("a")).status.error_code(), StatusCode::NOT_FOUND);
  Ask(*server, Question("b"));
  EXPECT_TRUE(WaitFor([&] { return server->loop->Stats().contexts == 1; }))
      << "its memory is given back";
}

TEST_F(Contexts, DeletedContextsAreUnknownAndTheirReadersContinue) {
  const auto server = MakeServer();
  Compressed(*server, Document("a"));
  const std::vector<uint32_t> expected = Ask(*server, Question("a")).token_ids;
  v1::GenerateRequest question = Question("a");
  question.mutable_stopping()->set_max_tokens(600);
  grpc::ClientContext context;
  const auto reader = server->stub->Generate(&context, question);
  v1::GenerateResponse first;
  ASSERT_TRUE(reader->Read(&first));
  EXPECT_TRUE(Delete(*server, "a").ok());
  StreamResult result;
  ReadRest(&context, reader.get(), &result);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  ASSERT_EQ(result.token_ids.size(), 600u);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), result.token_ids.begin()));
  EXPECT_EQ(RunToEnd(*server->stub, Question("a")).status.error_code(), StatusCode::NOT_FOUND);
  const grpc::Status again = Delete(*server, "a");
  EXPECT_EQ(again.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(again).reason, "UNKNOWN_CONTEXT");
}

TEST_F(Contexts, PinnedContextsAreNotEvicted) {
  const auto server = MakeServer();
  v1::CompressContextRequest request = Document("first", 'k', "full");
  request.set_pinned(true);
  Compressed(*server, request);
  for (int i = 0; i < 250; ++i) Compressed(*server, Document(std::to_string(i), 'k', "full"));
  EXPECT_TRUE(Get(*server, "first").ok()) << "others left for the newer ones";
  EXPECT_EQ(Get(*server, "0").error_code(), StatusCode::NOT_FOUND);
  grpc::Status status;
  for (int i = 0; i < 250 && status.ok(); ++i) {
    Reply reply;
    request.set_handle("pinned-" + std::to_string(i));
    status = Compress(*server, request, &reply);
  }
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).reason, "NO_ROOM");
  EXPECT_THAT(status.error_message(), HasSubstr("--context-memory-bytes"));
  EXPECT_TRUE(Delete(*server, "first").ok());
  Compressed(*server, Document("after"));
}

TEST_F(Contexts, BadRequestsNameTheField) {
  const auto server = MakeServer();
  struct Bad {
    const char* field;
    const char* words;
    std::function<void(v1::CompressContextRequest*)> spoil;
  };
  const Bad cases[] = {
      {"handle", "is empty", [](auto* r) { r->set_handle(""); }},
      {"handle", "may hold A-Z", [](auto* r) { r->set_handle("a/b"); }},
      {"handle", "does not begin with '.'", [](auto* r) { r->set_handle(".a"); }},
      {"handle", "at most 128", [](auto* r) { r->set_handle(std::string(129, 'a')); }},
      {"ttl_s", "outside [1, ", [](auto* r) { r->set_ttl_s(0); }},
      {"ttl_s", "outside [1, ", [](auto* r) { r->set_ttl_s(~uint64_t{0}); }},
      {"cache.question_tokens", "before any question",
       [](auto* r) { r->mutable_cache()->set_question_tokens(1); }},
      {"cache.question_agnostic", "before any question",
       [](auto* r) { r->mutable_cache()->set_question_agnostic(true); }},
      {"cache.cache_policy", "nope", [](auto* r) { r->mutable_cache()->set_cache_policy("nope"); }},
      {"cache.cache_ratio", "2", [](auto* r) { r->mutable_cache()->set_cache_ratio(2); }},
      {"prompt", "", [](auto* r) { r->clear_text(); }},
      {"text", "max_model_len", [](auto* r) { r->set_text(std::string(2100, 'x')); }},
      {"model", "", [](auto* r) { r->set_model("another"); }},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.field);
    v1::CompressContextRequest request = Document("a");
    bad.spoil(&request);
    Reply reply;
    const grpc::Status status = Compress(*server, request, &reply);
    EXPECT_EQ(status.error_code(), std::string(bad.field) == "model"
                                       ? StatusCode::NOT_FOUND
                                       : StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(bad.words));
    if (status.error_code() == StatusCode::INVALID_ARGUMENT) {
      EXPECT_EQ(DetailsOf(status).field, bad.field);
    }
  }
  for (const std::string& handle : {std::string(), std::string("../a"), std::string(500, 'a')}) {
    for (const auto& call : {Get(*server, handle), Delete(*server, handle), Save(*server, handle),
                             Load(*server, handle)}) {
      EXPECT_EQ(call.error_code(), StatusCode::INVALID_ARGUMENT);
      EXPECT_EQ(DetailsOf(call).field, "handle");
    }
  }
  EXPECT_EQ(HandlesOf(List(*server)), "");
}

// ---- With a store.

TEST_F(Contexts, WithoutAStoreNoneIsSaved) {
  const auto server = MakeServer();
  Compressed(*server, Document("a"));
  const grpc::Status status = Save(*server, "a");
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(DetailsOf(status).reason, "NO_CONTEXTS");
  EXPECT_THAT(status.error_message(), HasSubstr("--context-store"));
  EXPECT_TRUE(Load(*server, "a").ok()) << "it is here";
  EXPECT_EQ(Load(*server, "b").error_code(), StatusCode::NOT_FOUND);
}

class StoredContexts : public Contexts, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    uri_ = folder_.uri();
    if (GetParam() == std::string("dir")) return;
    HYDRANT_SKIP_WITHOUT_REDIS();
    redis_ = std::make_unique<RedisServer>();
    uri_ = redis_->uri();
  }
  StoreFolder folder_;
  std::unique_ptr<RedisServer> redis_;
  std::string uri_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoredContexts, testing::Values("dir", "redis"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StoredContexts, AnotherServerGoesOnFromThem) {
  const auto one = MakeServer(uri_), other = MakeServer(uri_);
  Compressed(*one, Document("a"));
  v1::Context saved;
  ASSERT_TRUE(Save(*one, "a", &saved).ok());
  // Kept contexts are saved in the background, too; not after the deletion below.
  ASSERT_TRUE(one->contexts->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  EXPECT_GT(saved.stored_bytes(), saved.memory_bytes() / 2);
  EXPECT_LT(saved.stored_bytes(), saved.memory_bytes() * 2);
  const StreamResult expected = Ask(*one, Question("a"));

  v1::Context found;
  ASSERT_TRUE(Get(*other, "a", &found).ok());
  EXPECT_FALSE(found.in_memory());
  EXPECT_EQ(found.stored_bytes(), saved.stored_bytes());
  const StreamResult answer = Ask(*other, Question("a"));
  EXPECT_EQ(answer.token_ids, expected.token_ids);
  EXPECT_EQ(answer.usage->cached_tokens(), expected.usage->cached_tokens());
  ASSERT_TRUE(Get(*other, "a", &found).ok());
  EXPECT_TRUE(found.in_memory());
  EXPECT_EQ(found.retained_mass().mean(), saved.retained_mass().mean());
  EXPECT_EQ(found.created_us(), saved.created_us());

  EXPECT_TRUE(Delete(*other, "a").ok());
  const auto third = MakeServer(uri_);
  EXPECT_EQ(RunToEnd(*third->stub, Question("a")).status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Load(*third, "a").error_code(), StatusCode::NOT_FOUND);
}

TEST_P(StoredContexts, KeptContextsAreSavedAutomatically) {
  std::string handle;
  std::vector<uint32_t> expected;
  {
    const auto server = MakeServer(uri_);
    v1::GenerateRequest request = TextRequest(std::string(200, 'k'), kOutput);
    request.mutable_cache()->set_cache_policy("h2o");
    request.mutable_cache()->set_max_cache_tokens(40);
    request.mutable_cache()->set_cache_salt("mine");
    request.mutable_stopping()->set_ignore_eos(true);
    request.set_keep(true);
    handle = KeptBy(Ask(*server, request));
    v1::GenerateRequest next = Question(handle);
    next.mutable_cache()->set_cache_salt("mine");
    expected = Ask(*server, next).token_ids;
    EXPECT_TRUE(
        server->contexts->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  }
  const auto server = MakeServer(uri_);
  EXPECT_EQ(HandlesOf(List(*server, "mine")), handle + " ");
  EXPECT_EQ(HandlesOf(List(*server)), "") << "another salt";
  v1::GenerateRequest next = Question(handle);
  EXPECT_EQ(RunToEnd(*server->stub, next).status.error_code(), StatusCode::NOT_FOUND);
  next.mutable_cache()->set_cache_salt("mine");
  EXPECT_EQ(Ask(*server, next).token_ids, expected);
}

TEST_P(StoredContexts, AnotherModelsContextIsRefused) {
  const auto one = MakeServer(uri_);
  auto other = MakeServer(uri_, 4);
  other->model.fingerprint[0] = 1;
  other->contexts = nullptr;
  other->contexts =
      std::make_unique<ContextArchive>(other->loop.get(), other->engine->offload_memory(),
                                       HomeOf(other->model), *OpenContextStore(uri_, {}));
  other->service->SetReady(&other->model, other->loop.get(), other->contexts.get());
  Compressed(*one, Document("a"));
  ASSERT_TRUE(Save(*one, "a").ok());
  for (const grpc::Status& status :
       {Load(*other, "a"), RunToEnd(*other->stub, Question("a")).status}) {
    EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION) << status.error_message();
    EXPECT_EQ(DetailsOf(status).reason, "CONTEXT_MISMATCH");
    EXPECT_THAT(status.error_message(), HasSubstr("another model"));
  }
  EXPECT_EQ(other->contexts->metrics().failed_loads, 2u);
  Compressed(*other, Document("b"));
  Ask(*other, Question("b"));
}

TEST_F(Contexts, DamagedFilesAreNamed) {
  const StoreFolder folder;
  const auto server = MakeServer(folder.uri()), other = MakeServer(folder.uri());
  Compressed(*server, Document("a"));
  ASSERT_TRUE(Save(*server, "a").ok());
  // Kept contexts are saved in the background, too; the temporary file is gone only after that.
  ASSERT_TRUE(server->contexts->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  const std::vector<std::filesystem::path> files = folder.Files();
  ASSERT_EQ(files.size(), 1u);
  const auto size = static_cast<int64_t>(std::filesystem::file_size(files[0]));
  {
    std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(size / 2);
    file.put('\x55');
    file.put('\x55');
  }
  for (int i = 0; i < 2; ++i) {
    const grpc::Status status =
        i == 0 ? Load(*other, "a") : RunToEnd(*other->stub, Question("a")).status;
    EXPECT_EQ(status.error_code(), StatusCode::DATA_LOSS) << status.error_message();
    EXPECT_EQ(DetailsOf(status).reason, "CONTEXT_DAMAGED");
    EXPECT_THAT(status.error_message(), HasSubstr("context a: "));
    std::filesystem::resize_file(files[0], size - 10);
  }
  Ask(*server, Question("a"));
  ASSERT_TRUE(Save(*server, "a").ok()) << "a good one takes its place";
  Ask(*other, Question("a"));
}

TEST_F(Contexts, ALostStoreCostsTheSavingAlone) {
  HYDRANT_SKIP_WITHOUT_REDIS();
  auto redis = std::make_unique<RedisServer>();
  const auto server = MakeServer(redis->uri());
  Compressed(*server, Document("a"));
  ASSERT_TRUE(Save(*server, "a").ok());
  redis->Stop();
  Compressed(*server, Document("b"));
  Ask(*server, Question("b"));
  for (const grpc::Status& status :
       {Save(*server, "a"), Load(*server, "c"), RunToEnd(*server->stub, Question("c")).status}) {
    EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
    EXPECT_EQ(DetailsOf(status).reason, "STORE_UNAVAILABLE");
    EXPECT_THAT(status.error_message(), HasSubstr("the Redis at " + redis->socket()));
  }
  Ask(*server, Question("a"));
  EXPECT_GT(server->contexts->metrics().failed_saves, 0u);
  EXPECT_EQ(server->contexts->metrics().failed_loads, 2u);
  redis->Start();
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_TRUE(Save(*server, "a").ok());
}

// Enough time for a call that is not held to end.
void LetItRun() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

// Returns when the loop has done it: WithContexts() alone is asynchronous.
void ForgetInMemory(RandomModelServer& server, const std::string& handle) {
  const ContextId id = {.salt = "", .handle = handle};
  CallOnLoop(server.loop.get(), &ServingLoop::WithContexts,
             [&](ContextTable* contexts) { return contexts->Remove(id); });
}

TEST_F(Contexts, ADeletedOneDoesNotComeBackByTheSaveThatWasAtWork) {
  const auto gate = std::make_shared<Gate>();
  const auto server = MakeServer(gate);
  gate->Hold([](Gate::Call call, const std::string&) { return call == Gate::Call::kPut; });
  Compressed(*server, Document("a"));  // the server saves it in the background
  gate->WaitUntilHeld(1);
  std::thread deletion([&] { EXPECT_TRUE(Delete(*server, "a").ok()); });
  LetItRun();
  gate->Open();
  deletion.join();
  EXPECT_TRUE(server->contexts->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  EXPECT_THAT(gate->Keys(), testing::IsEmpty());
  EXPECT_EQ(Load(*server, "a").error_code(), StatusCode::NOT_FOUND);
}

TEST_F(Contexts, ADeletedOneDoesNotComeBackByTheLoadThatWasAtWork) {
  const auto gate = std::make_shared<Gate>();
  const auto server = MakeServer(gate);
  Compressed(*server, Document("a"));
  ASSERT_TRUE(Save(*server, "a").ok());
  ForgetInMemory(*server, "a");
  gate->Hold([](Gate::Call call, const std::string&) { return call == Gate::Call::kGet; });
  std::thread loading([&] { (void)Load(*server, "a"); });
  gate->WaitUntilHeld(1);
  std::thread deletion([&] { EXPECT_TRUE(Delete(*server, "a").ok()); });
  LetItRun();
  gate->Open();
  loading.join();
  deletion.join();
  EXPECT_FALSE(server->contexts->IsInMemory({.salt = "", .handle = "a"}));
  EXPECT_THAT(gate->Keys(), testing::IsEmpty());
}

// More calls than the server's store threads; later calls are still served.
TEST_F(Contexts, CancelledCallsWaitForNoStore) {
  const auto gate = std::make_shared<Gate>();
  const auto server = MakeServer(gate);
  gate->Hold([](Gate::Call call, const std::string&) { return call == Gate::Call::kGet; });
  std::vector<std::unique_ptr<grpc::ClientContext>> calls;
  std::vector<std::thread> clients;
  for (int i = 0; i < 24; ++i) {
    grpc::ClientContext& call = *calls.emplace_back(std::make_unique<grpc::ClientContext>());
    clients.emplace_back([&, i] {
      v1::Context ignored;
      const auto request = Naming<v1::LoadContextRequest>("a" + std::to_string(i));
      EXPECT_EQ(server->stub->LoadContext(&call, request, &ignored).error_code(),
                StatusCode::CANCELLED);
    });
  }
  gate->WaitUntilHeld(1);
  LetItRun();
  for (const auto& call : calls) call->TryCancel();
  for (std::thread& client : clients) client.join();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::Context ignored;
  EXPECT_EQ(
      server->stub->GetContext(&context, Naming<v1::GetContextRequest>("b"), &ignored).error_code(),
      StatusCode::NOT_FOUND);
  // A Generate call that waits for the store ends as well.
  grpc::ClientContext generating;
  auto stream = server->stub->Generate(&generating, Question("c"));
  gate->WaitUntilHeld(2);
  generating.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(
      WaitFor([&] { return server->service->request_metrics().ended.Count("cancelled") > 0; }));
  gate->Open();
}

// Others decode while contexts come and go, and every request gets the same tokens as alone.
TEST_P(StoredContexts, ComeAndGoWhileOthersDecode) {
  const auto one = MakeServer(uri_);
  std::vector<std::vector<uint32_t>> expected;
  for (int i = 0; i < 4; ++i) {
    const std::string handle(1, static_cast<char>('a' + i));
    Compressed(*one, Document(handle, static_cast<char>('p' + i)));
    ASSERT_TRUE(Save(*one, handle).ok());
    expected.push_back(Ask(*one, Question(handle)).token_ids);
  }
  const auto other = MakeServer(uri_);
  std::vector<std::thread> clients;
  clients.reserve(4);
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      const std::string handle(1, static_cast<char>('a' + i));
      for (int round = 0; round < 8; ++round) {
        EXPECT_EQ(Ask(*other, Question(handle)).token_ids, expected[i]);
        // From memory only: the store still has it.
        ForgetInMemory(*other, handle);
        if (round % 3 == 0) {
          EXPECT_TRUE(Load(*other, handle).ok());
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(other->contexts->metrics().loaded_bytes, 4 * expected.size());
  EXPECT_EQ(other->contexts->metrics().failed_loads, 0u);
}

}  // namespace
}  // namespace hydrant
