// Load reports for load balancers: their contents, and the stream of reports.
#include <gtest/gtest.h>

#include "server/observe/load_meter.h"
#include "server/observe/recent_rate.h"
#include "tests/server/test_server.h"
#include "vllm/grpc/engine/engine.grpc.pb.h"
#include "xds/service/orca/v3/orca.grpc.pb.h"

namespace hydrant {
namespace {

using xds::data::orca::v3::OrcaLoadReport;
using xds::service::orca::v3::OpenRcaService;
using xds::service::orca::v3::OrcaLoadReportRequest;

// The reports of a stream.
class Reports {
 public:
  explicit Reports(const std::shared_ptr<grpc::Channel>& channel,
                   const OrcaLoadReportRequest& request = {})
      : stub_(OpenRcaService::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    reader_ = stub_->StreamCoreMetrics(&context_, request);
  }
  ~Reports() { Cancel(); }

  std::optional<OrcaLoadReport> Next() {
    OrcaLoadReport report;
    return reader_->Read(&report) ? std::optional(report) : std::nullopt;
  }
  grpc::Status Finish() { return reader_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  const std::unique_ptr<OpenRcaService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<OrcaLoadReport>> reader_;
};

OrcaLoadReportRequest Every(int64_t seconds, int nanos) {
  OrcaLoadReportRequest request;
  request.mutable_report_interval()->set_seconds(seconds);
  request.mutable_report_interval()->set_nanos(nanos);
  return request;
}

TEST(RecentRate, IsThatOfTenSeconds) {
  using std::chrono::milliseconds, std::chrono::seconds;
  const RecentRate::Time start{seconds(1003)};
  RecentRate rate(start);
  EXPECT_EQ(rate.PerSecond(start), 0);
  rate.Add(start);
  EXPECT_DOUBLE_EQ(rate.PerSecond(start), 1);
  for (int i = 1; i < 20; ++i) rate.Add(start + milliseconds(500) * i);
  EXPECT_DOUBLE_EQ(rate.PerSecond(start + milliseconds(9500)), 20 / 9.5);
  // Five of its seconds are outside of the window, and there were no later events.
  EXPECT_DOUBLE_EQ(rate.PerSecond(start + milliseconds(14'500)), 10 / 9.5);
  EXPECT_EQ(rate.PerSecond(start + seconds(100)), 0);
  rate.Add(start + seconds(101));
  EXPECT_DOUBLE_EQ(rate.PerSecond(start + seconds(102)), 1.0 / 9);
}

// Contents of the calls' trailers: gRPC's library hides them from clients; the test orca_client
// checks that they are sent.
TEST(LoadMeter, CountsTheCallThatEnds) {
  TestServer server;
  LoadMeter meter(/*cpus=*/0);
  meter.CountCall(grpc::StatusCode::OK);
  const OrcaLoadReport report = meter.Measure(server.service->Current(), /*ending=*/3);
  EXPECT_DOUBLE_EQ(report.application_utilization(), 3.0 / 16);
  EXPECT_EQ(report.named_metrics().at("num_requests_running"), 3);
  EXPECT_GT(report.rps_fractional(), 0);
  EXPECT_EQ(report.eps(), 0);
  EXPECT_EQ(report.cpu_utilization(), 0);
  EXPECT_LT(report.ByteSizeLong(), 200);
}

TEST(LoadMeter, CountsServerErrorsOnly) {
  TestServer server;
  const auto stub = ::vllm::grpc::engine::VllmEngine::NewStub(server.NewChannel());
  ::vllm::grpc::engine::GenerateRequest theirs;
  theirs.mutable_tokenized()->add_input_ids(65);
  theirs.mutable_sampling_params()->set_max_tokens(2);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, theirs);
  for (::vllm::grpc::engine::GenerateResponse message; reader->Read(&message);) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_GT(server.service->LoadReport().rps_fractional(), 0);

  auto request = TextRequest("abc", 8);
  request.mutable_sampling()->set_top_p(2);
  ASSERT_EQ(RunToEnd(server.stub(), request).status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(server.service->LoadReport().eps(), 0);

  server.engine.Lose(absl::InternalError("the device is gone"));
  ASSERT_FALSE(RunToEnd(server.stub(), TextRequest("abc", 8)).status.ok());
  const OrcaLoadReport lost = server.service->LoadReport();
  EXPECT_GT(lost.eps(), 0);
  EXPECT_GT(lost.rps_fractional(), lost.eps());
}

TEST(LoadStream, ReportsRunningAndWaiting) {
  TestServerOptions options;
  options.limits.max_num_seqs = 4;
  TestServer server(options);
  Reports reports(server.NewChannel(), Every(0, 100'000'000));
  const auto idle = reports.Next();
  ASSERT_TRUE(idle.has_value());
  EXPECT_EQ(idle->application_utilization(), 0);
  EXPECT_EQ(idle->mem_utilization(), 0);
  EXPECT_EQ(idle->named_metrics().at("num_requests_running"), 0);

  server.engine.Pause();
  auto request = TextRequest("abcdefgh", 300);
  request.mutable_sampling()->set_n(4);
  grpc::ClientContext context, of_next;
  const auto call = server.stub().Generate(&context, request);
  request.mutable_sampling()->set_n(2);
  const auto next = server.stub().Generate(&of_next, request);
  std::optional<OrcaLoadReport> busy;
  ASSERT_TRUE(WaitFor([&] {
    server.engine.AllowSteps(1);
    busy = reports.Next();
    return !busy.has_value() || (busy->named_metrics().at("num_requests_running") > 0 &&
                                 busy->named_metrics().at("num_requests_waiting") > 0);
  }));
  ASSERT_TRUE(busy.has_value());
  server.engine.WaitUntilHeld();
  busy = reports.Next();
  busy = reports.Next();  // made after the steps
  ASSERT_TRUE(busy.has_value());
  const ServingStats loop = server.loop->Stats();
  EXPECT_EQ(busy->named_metrics().at("num_requests_running"), loop.running + loop.prefilling);
  EXPECT_EQ(busy->named_metrics().at("num_requests_waiting"), loop.waiting);
  EXPECT_DOUBLE_EQ(busy->application_utilization(),
                   static_cast<double>(loop.running + loop.prefilling + loop.waiting) / 4);
  EXPECT_GT(busy->mem_utilization(), 0);
  EXPECT_LE(busy->mem_utilization(), 1);
  EXPECT_EQ(busy->mem_utilization(), busy->named_metrics().at("kv_cache_usage_perc"));
  EXPECT_EQ(busy->mem_utilization(),
            1 - static_cast<double>(loop.pages_free) / static_cast<double>(loop.pages_total));

  server.engine.Resume();
  StreamResult result, of_other;
  ReadRest(&context, call.get(), &result);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
  ReadRest(&of_next, next.get(), &of_other);
  EXPECT_TRUE(of_other.status.ok()) << of_other.status.error_message();
  ASSERT_TRUE(server.WaitUntilEmpty());
  reports.Next();
  const auto after = reports.Next();
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->named_metrics().at("num_requests_running"), 0);
  EXPECT_GT(after->rps_fractional(), 0);
  reports.Cancel();
  while (reports.Next().has_value()) {
  }
  EXPECT_EQ(reports.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(LoadStream, KeepsToTheInterval) {
  TestServer server;
  // The second would come after an hour.
  const auto channel = server.NewChannel();
  Reports rare(channel, Every(int64_t{1} << 40, 0)), negative(channel, Every(-1, 0));
  EXPECT_TRUE(rare.Next().has_value());
  EXPECT_FALSE(negative.Next().has_value());
  const grpc::Status refused = negative.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(refused).field, "report_interval");

  // Never sooner than requested; the delay depends on the machine.
  const auto start = std::chrono::steady_clock::now();
  Reports often(channel, Every(0, 1)), usual(channel);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(often.Next().has_value());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(295));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(usual.Next().has_value());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(995));
}

TEST(LoadStream, IsThereWhileTheModelLoadsAndEndsWithTheServer) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(options);
  Reports reports(server.NewChannel());
  const auto loading = reports.Next();
  ASSERT_TRUE(loading.has_value());
  EXPECT_EQ(loading->named_metrics_size(), 0);
  // Otherwise it would last for the whole grace, and end as cancelled.
  server.server->Shutdown(std::chrono::seconds(20));
  while (reports.Next().has_value()) {
  }
  const grpc::Status end = reports.Finish();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(end).reason, "DRAINING");
}

TEST(LoadStream, ThereAreOnlySoMany) {
  TestServer server;
  const auto channel = server.NewChannel();
  const auto request = Every(3600, 0);
  std::vector<std::unique_ptr<Reports>> all;
  for (int i = 0; i < 256; ++i) {
    all.push_back(std::make_unique<Reports>(channel, request));
    ASSERT_TRUE(all.back()->Next().has_value()) << i;
  }
  Reports more(channel, request);
  EXPECT_FALSE(more.Next().has_value());
  EXPECT_EQ(more.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // An ended stream makes room.
  all.pop_back();
  EXPECT_TRUE(WaitFor([&] { return Reports(channel, request).Next().has_value(); }));
}

}  // namespace
}  // namespace hydrant
