// SpanExporter with a collector that accepts, is slow, refuses, or is absent.
#include "server/observe/span_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/server/fake_collector.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using std::chrono::milliseconds, std::chrono::minutes;

std::vector<Span> SpansNamed(const std::string& name, size_t count) {
  std::vector<Span> spans(count);
  for (size_t i = 0; i < count; ++i) spans[i].set_name(name + std::to_string(i));
  return spans;
}

// Intervals so long that only the tested event triggers sending.
SpanExporter::Options To(const std::string& address) {
  return {.address = address,
          .credentials = grpc::InsecureChannelCredentials(),
          .service_name = "a service",
          .version = "1.2.3",
          .interval = minutes(10),
          .timeout = minutes(1)};
}

// An address without a listener.
std::string UnusedAddress() { return FakeCollector().address(); }

class Failures {
 public:
  std::function<void(const absl::Status&)> Sink() {
    return [this](const absl::Status& status) {
      const std::lock_guard lock(mutex_);
      statuses_.push_back(status);
    };
  }
  std::vector<absl::Status> Get() {
    const std::lock_guard lock(mutex_);
    return statuses_;
  }

 private:
  std::mutex mutex_;
  std::vector<absl::Status> statuses_;
};

TEST(SpanExporter, SendsBatchesAsTheyFillAndTheRestInTheEnd) {
  FakeCollector collector;
  auto options = To(collector.address());
  options.max_batch_spans = 4;
  SpanExporter exporter(options);
  exporter.Add(SpansNamed("a", 3));
  exporter.Add(SpansNamed("b", 3));
  EXPECT_EQ(collector.WaitForSpans(4).size(), 4u);
  exporter.Stop(minutes(1));
  const auto spans = collector.WaitForSpans(6);
  std::vector<std::string> names;
  names.reserve(spans.size());
  for (const Span& span : spans) names.push_back(span.name());
  EXPECT_THAT(names, testing::ElementsAre("a0", "a1", "a2", "b0", "b1", "b2"));
  EXPECT_EQ(exporter.metrics().exported, 6u);
  EXPECT_EQ(exporter.metrics().dropped, 0u);

  ASSERT_EQ(collector.requests().size(), 2u);
  for (const auto& request : collector.requests()) {
    ASSERT_EQ(request.resource_spans_size(), 1);
    std::map<std::string, std::string> resource;
    for (const auto& attribute : request.resource_spans(0).resource().attributes())
      resource[attribute.key()] = attribute.value().string_value();
    EXPECT_THAT(resource, testing::UnorderedElementsAre(testing::Pair("service.name", "a service"),
                                                        testing::Pair("service.version", "1.2.3")));
    ASSERT_EQ(request.resource_spans(0).scope_spans_size(), 1);
    EXPECT_EQ(request.resource_spans(0).scope_spans(0).scope().name(), "hydrantd");
  }
}

TEST(SpanExporter, SendsItsHeadersWithEachBatch) {
  FakeCollector collector;
  auto options = To(collector.address());
  options.max_batch_spans = 2;
  options.headers = {{"authorization", "Bearer secret"}, {"x-bytes-bin", std::string("\0\xff", 2)}};
  SpanExporter exporter(options);
  exporter.Add(SpansNamed("a", 4));
  exporter.Stop(minutes(1));
  ASSERT_EQ(collector.calls(), 2);
  for (const auto& metadata : collector.metadata()) {
    EXPECT_THAT(metadata, testing::Contains(testing::Pair("authorization", "Bearer secret")));
    EXPECT_THAT(metadata,
                testing::Contains(testing::Pair("x-bytes-bin", std::string("\0\xff", 2))));
  }
}

TEST(SpanExporter, SendsPartialBatchesAfterAnInterval) {
  FakeCollector collector;
  auto options = To(collector.address());
  options.interval = milliseconds(1);
  SpanExporter exporter(options);
  exporter.Add(SpansNamed("a", 1));
  EXPECT_EQ(collector.WaitForSpans(1).size(), 1u);
}

// A request's spans stay together.
TEST(SpanExporter, DropsSpansIfTheQueueIsFull) {
  std::promise<void> go_on;
  FakeCollector collector([wait = go_on.get_future().share()](int, auto*) {
    wait.wait();
    return grpc::Status::OK;
  });
  auto options = To(collector.address());
  options.max_batch_spans = 4;
  options.max_queue_spans = 8;
  SpanExporter exporter(options);
  exporter.Add(SpansNamed("first", 4));
  EXPECT_TRUE(WaitFor([&] { return collector.calls() == 1; }));
  // The first batch is in flight.
  exporter.Add(SpansNamed("second", 5));
  exporter.Add(SpansNamed("no room", 4));
  exporter.Add(SpansNamed("third", 3));
  exporter.Add(SpansNamed("no room", 1));
  EXPECT_EQ(exporter.metrics().dropped, 5u);
  go_on.set_value();
  exporter.Stop(minutes(1));
  const auto spans = collector.WaitForSpans(12);
  EXPECT_EQ(spans.size(), 12u);
  for (const Span& span : spans) EXPECT_THAT(span.name(), testing::Not(testing::HasSubstr("no")));
  EXPECT_EQ(exporter.metrics().exported, 12u);
  EXPECT_EQ(exporter.metrics().dropped, 5u);
}

TEST(SpanExporter, TimesOutOnASilentCollector) {
  std::promise<void> go_on;
  FakeCollector collector([wait = go_on.get_future().share()](int, auto*) {
    wait.wait();
    return grpc::Status::OK;
  });
  Failures failures;
  auto options = To(collector.address());
  options.max_batch_spans = 2;
  options.timeout = milliseconds(50);
  options.on_failure = failures.Sink();
  SpanExporter exporter(options);
  exporter.Add(SpansNamed("a", 2));
  EXPECT_TRUE(WaitFor([&] { return exporter.metrics().dropped == 2; }));
  EXPECT_TRUE(WaitFor([&] { return failures.Get().size() == 1; }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(failures.Get()[0])) << failures.Get()[0];
  EXPECT_THAT(std::string(failures.Get()[0].message()), testing::HasSubstr("2 spans are dropped"));
  go_on.set_value();
}

// Neither the batch in flight nor queued spans delay it.
TEST(SpanExporter, StopsThoughTheCollectorIsSilent) {
  std::promise<void> go_on;
  FakeCollector collector([wait = go_on.get_future().share()](int, auto*) {
    wait.wait();
    return grpc::Status::OK;
  });
  auto options = To(collector.address());
  options.max_batch_spans = 2;
  options.timeout = minutes(10);
  SpanExporter exporter(options);
  exporter.Add(SpansNamed("a", 5));
  EXPECT_TRUE(WaitFor([&] { return collector.calls() == 1; }));
  exporter.Stop(milliseconds(1));
  EXPECT_EQ(exporter.metrics().exported, 0u);
  EXPECT_EQ(exporter.metrics().dropped, 5u);
  exporter.Add(SpansNamed("late", 1));
  EXPECT_EQ(exporter.metrics().dropped, 6u);
  go_on.set_value();
}

TEST(SpanExporter, DropsSpansWithoutACollector) {
  Failures failures;
  auto options = To(UnusedAddress());
  options.max_batch_spans = 1;
  options.timeout = milliseconds(50);
  options.on_failure = failures.Sink();
  SpanExporter exporter(options);
  for (int i = 0; i < 3; ++i) exporter.Add(SpansNamed("a", 1));
  ASSERT_TRUE(WaitFor([&] { return exporter.metrics().dropped == 3; }));
  exporter.Stop(milliseconds(0));
  ASSERT_EQ(failures.Get().size(), 3u);
  for (const absl::Status& status : failures.Get())
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
}

// While the circuit is open, spans are dropped immediately and nothing is sent.
TEST(SpanExporter, ACollectorThatIsSilentIsLeftAloneAndFoundAgain) {
  std::atomic<bool> silent{true};
  std::promise<void> end;
  FakeCollector collector([&, wait = end.get_future().share()](int, auto*) {
    if (silent) wait.wait();
    return grpc::Status::OK;
  });
  std::mutex mutex;
  std::vector<bool> told;
  auto options = To(collector.address());
  options.max_batch_spans = 1;
  options.timeout = milliseconds(50);
  options.on_circuit = [&](const absl::Status& why) {
    const std::lock_guard lock(mutex);
    told.push_back(why.ok());
  };
  SpanExporter exporter(options);
  for (int i = 0; i < 5; ++i) exporter.Add(SpansNamed("a", 1));
  ASSERT_TRUE(WaitFor([&] { return exporter.metrics().dropped == 5; }));
  EXPECT_EQ(collector.calls(), 3);
  EXPECT_TRUE(exporter.circuit().is_open());
  silent = false;
  end.set_value();
  ASSERT_TRUE(WaitFor([&] {
    exporter.Add(SpansNamed("b", 1));
    return exporter.metrics().exported > 0;
  }));
  EXPECT_FALSE(exporter.circuit().is_open());
  exporter.Stop(minutes(1));
  EXPECT_THAT(told, testing::ElementsAre(false, true));
}

TEST(SpanExporter, TriesAgainWhereTheCollectorSaysSo) {
  FakeCollector collector([](int n, auto*) {
    return n == 0 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "busy") : grpc::Status::OK;
  });
  auto options = To(collector.address());
  options.max_batch_spans = 2;
  SpanExporter exporter(options);
  exporter.Add(SpansNamed("a", 2));
  EXPECT_EQ(collector.WaitForSpans(2).size(), 2u);
  exporter.Stop(minutes(1));
  EXPECT_EQ(collector.calls(), 2);
  EXPECT_EQ(exporter.metrics().exported, 2u);
  EXPECT_EQ(exporter.metrics().dropped, 0u);
}

TEST(SpanExporter, CountsRefusedSpans) {
  FakeCollector collector([](int n, FakeCollector::Response* response) {
    if (n == 1) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "malformed");
    response->mutable_partial_success()->set_rejected_spans(3);
    response->mutable_partial_success()->set_error_message("too old");
    return grpc::Status::OK;
  });
  Failures failures;
  auto options = To(collector.address());
  options.max_batch_spans = 4;
  options.on_failure = failures.Sink();
  SpanExporter exporter(options);
  exporter.Add(SpansNamed("a", 8));
  exporter.Stop(minutes(1));
  EXPECT_EQ(collector.calls(), 2);
  EXPECT_EQ(exporter.metrics().exported, 1u);
  EXPECT_EQ(exporter.metrics().dropped, 7u);
  ASSERT_EQ(failures.Get().size(), 2u);
  EXPECT_EQ(std::string(failures.Get()[0].message()), "3 spans are dropped: too old");
  EXPECT_EQ(std::string(failures.Get()[1].message()), "4 spans are dropped: malformed");
}

}  // namespace
}  // namespace hydrant
