// The Open Inference Protocol: readiness and metadata of server and model.
#include <gtest/gtest.h>

#include "inference/inference.grpc.pb.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using Stub = inference::GRPCInferenceService::Stub;

template <typename Request, typename Response>
using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

template <typename Request, typename Response>
grpc::Status Call(Stub& stub, Method<Request, Response> method, const Request& request,
                  Response* response) {
  grpc::ClientContext context;
  return (stub.*method)(&context, request, response);
}

TEST(InferenceService, SaysWhetherServerAndModelAreThere) {
  TestServerOptions options;
  options.ready = false;
  TestServer server(options);
  const auto stub = inference::GRPCInferenceService::NewStub(server.NewChannel());
  const auto expect = [&](bool live, bool ready) {
    inference::ServerLiveResponse is_live;
    ASSERT_TRUE(Call(*stub, &Stub::ServerLive, {}, &is_live).ok());
    EXPECT_EQ(is_live.live(), live);
    inference::ServerReadyResponse is_ready;
    ASSERT_TRUE(Call(*stub, &Stub::ServerReady, {}, &is_ready).ok());
    EXPECT_EQ(is_ready.ready(), ready);
    inference::ModelReadyRequest model;
    model.set_name("test-model");
    inference::ModelReadyResponse has_model;
    ASSERT_TRUE(Call(*stub, &Stub::ModelReady, model, &has_model).ok());
    EXPECT_EQ(has_model.ready(), ready);
  };
  expect(true, false);
  inference::ModelMetadataResponse metadata;
  EXPECT_EQ(Call(*stub, &Stub::ModelMetadata, {}, &metadata).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  server.service->SetReady(&server.model, server.loop.get(), server.contexts.get());
  expect(true, true);
  server.service->SetEngineLost(absl::InternalError("the device is gone"));
  expect(false, false);
}

TEST(InferenceService, DescribesTheModelAndNoOther) {
  TestServer server;
  const auto stub = inference::GRPCInferenceService::NewStub(server.NewChannel());
  inference::ServerMetadataResponse about;
  ASSERT_TRUE(Call(*stub, &Stub::ServerMetadata, {}, &about).ok());
  EXPECT_EQ(about.name(), "hydrant");
  EXPECT_EQ(about.version(), "test");
  inference::ModelMetadataRequest request;
  inference::ModelMetadataResponse metadata;
  request.set_name("test-model");
  request.set_version("1");
  ASSERT_TRUE(Call(*stub, &Stub::ModelMetadata, request, &metadata).ok());
  EXPECT_EQ(metadata.name(), "test-model");
  EXPECT_EQ(metadata.platform(), "hydrant");
  request.set_version("2");
  const grpc::Status version = Call(*stub, &Stub::ModelMetadata, request, &metadata);
  EXPECT_EQ(version.error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_name("another");
  const grpc::Status other = Call(*stub, &Stub::ModelMetadata, request, &metadata);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(DetailsOf(other).reason, "UNKNOWN_MODEL");
  inference::ModelReadyRequest ready;
  ready.set_name("another");
  inference::ModelReadyResponse is_ready;
  EXPECT_EQ(Call(*stub, &Stub::ModelReady, ready, &is_ready).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace hydrant
