// The daemon's load as balancers read it: in the trailers of calls, and in a stream of reports.
#include <gtest/gtest.h>

#include "tests/server/test_server.h"
#include "vllm/grpc/engine/engine.grpc.pb.h"
#include "xds/service/orca/v3/orca.grpc.pb.h"

namespace hydrant {
namespace {

using xds::data::orca::v3::OrcaLoadReport;
using xds::service::orca::v3::OpenRcaService;
using xds::service::orca::v3::OrcaLoadReportRequest;

// Each message of its stream is a report.
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

std::string LoadTrailer(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  EXPECT_EQ(trailers.count("endpoint-load-metrics-bin"), 1);
  const auto it = trailers.find("endpoint-load-metrics-bin");
  return it == trailers.end() ? "" : std::string(it->second.data(), it->second.size());
}

OrcaLoadReport ReportOf(const grpc::ClientContext& context) {
  OrcaLoadReport report;
  EXPECT_TRUE(report.ParseFromString(LoadTrailer(context)));
  return report;
}

TEST(LoadTrailer, EndsEachCallOfBothContracts) {
  TestServer server;
  grpc::ClientContext ours;
  ASSERT_TRUE(RunToEnd(server.stub(), TextRequest("abc", 8), &ours).status.ok());
  EXPECT_GT(ReportOf(ours).rps_fractional(), 0);
  // Of 16 sequences: this one.
  EXPECT_GE(ReportOf(ours).application_utilization(), 1.0 / 16);
  EXPECT_EQ(ReportOf(ours).eps(), 0);
  EXPECT_LT(LoadTrailer(ours).size(), 200);

  namespace vllm = ::vllm::grpc::engine;
  const auto stub = vllm::VllmEngine::NewStub(server.NewChannel());
  vllm::GenerateRequest request;
  request.mutable_tokenized()->add_input_ids(65);
  request.mutable_sampling_params()->set_max_tokens(2);
  request.set_stream(true);
  request.mutable_sampling_params()->set_n(3);
  grpc::ClientContext theirs;
  const auto reader = stub->Generate(&theirs, request);
  for (vllm::GenerateResponse message; reader->Read(&message);) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_GE(ReportOf(theirs).application_utilization(), 3.0 / 16);
  EXPECT_GT(ReportOf(theirs).rps_fractional(), 0);
}

TEST(LoadTrailer, CountsAsErrorsWhatAnotherServerMightHaveDone) {
  TestServer server;
  grpc::ClientContext mistaken;
  auto request = TextRequest("abc", 8);
  request.mutable_sampling()->set_top_p(2);
  ASSERT_EQ(RunToEnd(server.stub(), request, &mistaken).status.error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReportOf(mistaken).eps(), 0);
  EXPECT_GT(ReportOf(mistaken).rps_fractional(), 0);

  server.engine.Lose(absl::InternalError("the device is gone"));
  grpc::ClientContext lost;
  ASSERT_FALSE(RunToEnd(server.stub(), TextRequest("abc", 8), &lost).status.ok());
  EXPECT_GT(ReportOf(lost).eps(), 0);
  EXPECT_GT(ReportOf(lost).rps_fractional(), ReportOf(lost).eps());
}

TEST(LoadStream, TellsWhatRunsAndWhatWaits) {
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
  auto request = TextRequest("abcdefgh", 8);
  request.mutable_sampling()->set_n(6);
  grpc::ClientContext context;
  const auto call = server.stub().Generate(&context, request);
  std::optional<OrcaLoadReport> busy;
  server.engine.AllowSteps(2);
  // What the reports say becomes what the loop says.
  ASSERT_TRUE(WaitFor([&] {
    busy = reports.Next();
    return !busy.has_value() || busy->named_metrics().at("num_requests_running") > 0;
  }));
  ASSERT_TRUE(busy.has_value());
  server.engine.WaitUntilHeld();
  busy = reports.Next();
  busy = reports.Next();  // made after the steps
  ASSERT_TRUE(busy.has_value());
  const LoopSnapshot loop = server.loop->Snapshot();
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
  StreamResult result;
  ReadRest(&context, call.get(), &result);
  EXPECT_TRUE(result.status.ok()) << result.status.error_message();
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
  // An hour passes before the second.
  const auto channel = server.NewChannel();
  Reports rare(channel, Every(int64_t{1} << 40, 0)), negative(channel, Every(-1, 0));
  EXPECT_TRUE(rare.Next().has_value());
  EXPECT_FALSE(negative.Next().has_value());
  const grpc::Status refused = negative.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailsOf(refused).field, "report_interval");

  // Never sooner than was asked; how much later, the machine decides.
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
  // It would last for the whole grace otherwise, and end as cancelled.
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
  // One that leaves makes room.
  all.pop_back();
  EXPECT_TRUE(WaitFor([&] { return Reports(channel, request).Next().has_value(); }));
}

}  // namespace
}  // namespace hydrant
