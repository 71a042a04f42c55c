// Texts that take long to tokenize: they do not delay others, wait in a bounded queue, and are not
// tokenized if they cannot fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/log_watch.h"
#include "tests/server/scrape.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

constexpr size_t kLong = 20'000;  // bytes, and tokens

// Blocks the tokenization of a long text.
class Gate {
 public:
  void Pass(std::string_view text) {
    std::unique_lock lock(mutex_);
    longest_ = std::max(longest_, text.size());
    if (text.size() < kLong) return;
    seen_.emplace_back(text.substr(0, 8));
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void WaitUntilSeen(size_t texts) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return seen_.size() >= texts; });
  }
  // The beginnings of the long texts being tokenized.
  std::vector<std::string> Seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }
  size_t Longest() {
    const std::lock_guard lock(mutex_);
    return longest_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool open_ = false;
  std::vector<std::string> seen_;
  size_t longest_ = 0;
};

TestServerOptions WithRoom() {
  TestServerOptions options;
  options.limits.max_model_len = 1 << 20;
  options.limits.prefill_arena_tokens = 1 << 20;
  options.limits.num_blocks = 1 << 19;
  options.limits.table_entries = 1 << 20;
  options.scheduler.max_num_queued_tokens = int64_t{1} << 40;
  options.log_level = spdlog::level::debug;
  return options;
}

class LongText : public testing::Test {
 protected:
  explicit LongText(const TestServerOptions& options = WithRoom()) : server_(options) {
    server_.tokenizer.before_encode = [this](std::string_view text) { gate_.Pass(text); };
  }
  ~LongText() override { gate_.Open(); }

  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
    StreamResult result;
  };
  std::unique_ptr<Call> Start(const std::string& name, uint32_t max_tokens = 3) {
    auto call = std::make_unique<Call>();
    std::string text = name + std::string(kLong, '.');
    call->reader = server_.stub().Generate(&call->context, TextRequest(text, max_tokens));
    return call;
  }
  static const StreamResult& End(Call* call) {
    ReadRest(&call->context, call->reader.get(), &call->result);
    return call->result;
  }
  double Counted(const std::string& series) { return ParseScrape(server_.MetricsText())[series]; }

  LogWatch log_;
  Gate gate_;
  TestServer server_;
};

TEST_F(LongText, DelaysNoOther) {
  std::vector<std::unique_ptr<Call>> calls;
  calls.reserve(40);
  for (int i = 0; i < 40; ++i) calls.push_back(Start("long"));
  gate_.WaitUntilSeen(1);
  // Generous for both calls: the deadline lets the test end if they hang.
  const auto soon = [] { return std::chrono::system_clock::now() + std::chrono::seconds(15); };
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    context.set_deadline(soon());
    const StreamResult result = RunToEnd(*server_.NewStub(), TextRequest("short", 5), &context);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  }
  {
    grpc::ClientContext context;
    context.set_deadline(soon());
    v1::TokenizeRequest request;
    v1::TokenizeResponse response;
    request.set_text("short");
    const grpc::Status status = server_.stub().Tokenize(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  gate_.Open();
  for (const auto& call : calls)
    EXPECT_TRUE(End(call.get()).status.ok()) << call->result.status.error_message();
}

// Two texts are tokenized at a time; a third one waits.
class LongTextThatWaits : public LongText {
 protected:
  LongTextThatWaits() {
    for (int i = 0; i < 2; ++i) busy_.push_back(Start("busy"));
    gate_.WaitUntilSeen(2);
  }
  void ExpectThatTheBusyEndWell() {
    gate_.Open();
    for (const auto& call : busy_)
      EXPECT_TRUE(End(call.get()).status.ok()) << call->result.status.error_message();
    EXPECT_TRUE(server_.WaitUntilEmpty());
  }
  void ExpectNeverRead() {
    for (const std::string& text : gate_.Seen()) EXPECT_THAT(text, testing::StartsWith("busy"));
  }

  std::vector<std::unique_ptr<Call>> busy_;
};

TEST_F(LongTextThatWaits, AndIsCancelledIsNotRead) {
  const auto waits = Start("waits");
  waits->context.TryCancel();
  EXPECT_EQ(End(waits.get()).status.error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(log_.WaitForLine("(not read yet)", "the client has gone"));
  ExpectThatTheBusyEndWell();
  EXPECT_TRUE(
      WaitFor([&] { return Counted("hydrant_requests_total{outcome=\"cancelled\"}") == 1; }));
  ExpectNeverRead();
}

TEST_F(LongTextThatWaits, PastItsDeadlineIsNotTokenized) {
  auto waits = std::make_unique<Call>();
  waits->context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  waits->reader =
      server_.stub().Generate(&waits->context, TextRequest("w" + std::string(kLong, '.'), 3));
  EXPECT_EQ(End(waits.get()).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(log_.WaitForLine("(not read yet)", "deadline"));
  ExpectThatTheBusyEndWell();
  EXPECT_TRUE(
      WaitFor([&] { return Counted("hydrant_requests_total{outcome=\"deadline\"}") == 1; }));
  ExpectNeverRead();
}

// The loop is notified as soon as it knows the request.
TEST_F(LongText, EndsWithItsClient) {
  const auto call = Start("goes", 500'000);  // longer than the notification takes
  gate_.WaitUntilSeen(1);
  call->context.TryCancel();
  ASSERT_TRUE(log_.WaitForLine("(not read yet)", "the client has gone"));
  gate_.Open();
  EXPECT_EQ(End(call.get()).status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server_.WaitUntilEmpty());
  EXPECT_TRUE(
      WaitFor([&] { return Counted("hydrant_requests_total{outcome=\"cancelled\"}") == 1; }));
}

class LongTextsInAShortQueue : public LongText {
 protected:
  LongTextsInAShortQueue()
      : LongText([] {
          TestServerOptions options = WithRoom();
          // room for one waiting request, or two slightly longer ones
          options.max_waiting_request_bytes = 2 * kLong;
          return options;
        }()) {}
};

TEST_F(LongTextsInAShortQueue, AreRefusedWithATimeToRetry) {
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 2; ++i) {  // one after the other: there is room for one to wait
    calls.push_back(Start("busy"));
    gate_.WaitUntilSeen(i + 1);
  }
  calls.push_back(Start("waits"));
  calls.push_back(Start("or not"));  // the first waits, the other is refused
  ASSERT_TRUE(WaitFor(
      [&] { return Counted("hydrant_requests_refused_total{reason=\"QUEUE_FULL\"}") == 1; }));
  v1::TokenizeRequest request;
  request.set_text(std::string(kLong, '.'));
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server_.stub().Tokenize(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).reason, "QUEUE_FULL") << status.error_message();
  EXPECT_GT(DetailsOf(status).retry_s, 0);
  EXPECT_THAT(status.error_message(), HasSubstr("40000 bytes wait to be tokenized"));
  gate_.Open();
  int refused = 0;
  for (const auto& call : calls) {
    const grpc::Status& end = End(call.get()).status;
    if (end.ok()) continue;
    ++refused;
    EXPECT_EQ(end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << end.error_message();
    EXPECT_EQ(DetailsOf(end).reason, "QUEUE_FULL");
    EXPECT_GT(DetailsOf(end).retry_s, 0);
  }
  EXPECT_EQ(refused, 1);
}

// No token of the tokenizer has more than three bytes.
TEST(TooLongToFit, IsRefusedUnread) {
  TestServer server;
  Gate gate;
  gate.Open();
  server.tokenizer.before_encode = [&](std::string_view text) { gate.Pass(text); };
  v1::GenerateRequest request = TextRequest(std::string(2047 * 3 + 1, 'x'), 3);
  StreamResult result = RunToEnd(server.stub(), request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(result.status).field, "text");
  EXPECT_EQ(DetailsOf(result.status).reason, "INVALID");
  for (const char* piece : {"6142 bytes", "6141", "2047 tokens"})
    EXPECT_THAT(result.status.error_message(), HasSubstr(piece));

  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content(std::string(2047 * 3 + 1, 'x'));
  result = RunToEnd(server.stub(), request);
  EXPECT_EQ(DetailsOf(result.status).field, "chat") << result.status.error_message();
  EXPECT_EQ(gate.Longest(), 0u);

  // "<s>" is one token: the longest text that fits is tokenized, and fits.
  std::string marks;
  for (int i = 0; i < 2046; ++i) marks += "<s>";  // plus BOS
  result = RunToEnd(server.stub(), TextRequest(marks, 1));
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
}

}  // namespace
}  // namespace hydrant
