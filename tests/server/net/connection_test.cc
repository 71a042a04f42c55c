// The gRPC server's behaviour around the service: vanished clients, oversized messages, reflection.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/wire/wire_message.h"
#include "tests/server/log_watch.h"
#include "tests/server/relay.h"
#include "tests/server/test_server.h"

namespace hydrant {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using testing::Each;
using testing::HasSubstr;
using testing::IsSupersetOf;

std::unique_ptr<v1::Hydrant::Stub> StubThrough(const Relay& relay) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::Hydrant::NewStub(
      grpc::CreateCustomChannel(relay.address(), grpc::InsecureChannelCredentials(), arguments));
}

TestServerOptions ImpatientServer() {
  TestServerOptions options;
  options.grpc.keepalive_time_ms = 100;
  options.grpc.keepalive_timeout_ms = 500;
  options.log_level = spdlog::level::debug;
  return options;
}

std::string FirstLine(const std::filesystem::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// The scheduling policies of gRPC's completion threads that are named already.
std::vector<int> CompletionThreadPolicies() {
  std::vector<int> policies;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (FirstLine(task.path() / "comm") == "nexting_thread")
      policies.push_back(sched_getscheduler(std::stoi(task.path().filename())));
  }
  return policies;
}

// gRPC's threads yield to the writer, and the starting thread's policy is unchanged.
TEST(Threads, GrpcThreadsAreBatch) {
  if (sched_getscheduler(0) != SCHED_OTHER) GTEST_SKIP() << "run under a policy of the user's";
  const TestServer server;
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  ASSERT_TRUE(WaitFor([] { return !CompletionThreadPolicies().empty(); }))
      << "gRPC has given its threads another name";
  EXPECT_THAT(CompletionThreadPolicies(), Each(SCHED_BATCH));
}

// No socket is closed: only an unanswered ping can reveal it.
TEST(Keepalive, AClientThatVanishedIsCancelledAndItsPagesAreFree) {
  LogWatch log;
  TestServer server(ImpatientServer());
  server.engine.Pause();
  Relay relay(server.port());
  const auto stub = StubThrough(relay);
  v1::GenerateRequest request = TextRequest("x", 2000);
  request.set_request_id("vanishes");
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_accepted());
  server.engine.AllowSteps(1);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_delta());
  server.engine.WaitUntilHeld();
  EXPECT_LT(server.loop->Stats().pages_free, server.loop->Stats().pages_total);

  relay.Vanish();
  EXPECT_TRUE(log.WaitForLine("request vanishes is to end", "the client has gone"));
  server.engine.AllowSteps(2);
  EXPECT_TRUE(server.WaitUntilEmpty());
  context.TryCancel();  // the client itself has not noticed
  StreamResult rest;
  ReadRest(&context, reader.get(), &rest);
  EXPECT_EQ(rest.status.error_code(), grpc::StatusCode::CANCELLED);
}

// The counterpart: a stream is silent for longer than time and timeout together, but its client
// answers pings, and it continues.
TEST(Keepalive, ASilentStreamOfAClientThatAnswersGoesOn) {
  TestServer server(ImpatientServer());
  server.engine.Pause();
  Relay relay(server.port());
  const auto stub = StubThrough(relay);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, TextRequest("x", 20));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  server.engine.WaitUntilHeld();
  const int heard = relay.pieces_from_clients();
  // An answer every 100 ms: eight of them take longer than the ping timeout.
  EXPECT_TRUE(WaitFor([&] { return relay.pieces_from_clients() >= heard + 8; }));
  server.engine.Resume();
  StreamResult rest;
  ReadRest(&context, reader.get(), &rest);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(rest.token_ids.size(), 20u);
}

TEST(MessageSize, OneBeyondTheLimitIsRefusedAndTheConnectionLives) {
  TestServerOptions options;
  options.grpc.max_message_bytes = 10'000;
  TestServer server(options);
  const StreamResult large = RunToEnd(server.stub(), TextRequest(std::string(20'000, 'x'), 1));
  EXPECT_EQ(large.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(large.status.error_message(), HasSubstr("larger than max"));
  EXPECT_THAT(large.status.error_message(), HasSubstr("10000"));
  EXPECT_TRUE(large.events.empty());
  EXPECT_TRUE(RunToEnd(server.stub(), TextRequest("x", 2)).status.ok());
}

TEST(MessageSize, TheDaemonsLimitIsSixteenMebibytes) {
  TestServer server;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text(std::string(17 << 20, 'x'));
  grpc::ClientContext first;
  const grpc::Status status = server.stub().Tokenize(&first, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr(std::to_string(16 << 20)));
}

// 20 MB that are 20 KB on the wire, and an empty message: compressed messages are not decompressed.
TEST(Compression, OfRequestsIsRefusedByNameAndTheConnectionLives) {
  TestServer server;
  for (const auto& [algorithm, name] :
       {std::pair(GRPC_COMPRESS_GZIP, "gzip"), std::pair(GRPC_COMPRESS_DEFLATE, "deflate")}) {
    for (const size_t bytes : {size_t{1000}, size_t{20'000'000}}) {
      grpc::ClientContext context;
      context.set_compression_algorithm(algorithm);
      v1::TokenizeRequest request;
      v1::TokenizeResponse response;
      request.set_text(std::string(bytes, 'x'));
      const grpc::Status status = server.stub().Tokenize(&context, request, &response);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << name << " " << bytes;
      EXPECT_THAT(status.error_message(), HasSubstr(name)) << bytes;
    }
  }
  EXPECT_TRUE(RunToEnd(server.stub(), TextRequest("x", 2)).status.ok());
}

// A reflection client. The messages' classes are in gRPC's library, but their headers are
// not installed.
class ReflectionClient {
 public:
  explicit ReflectionClient(const TestServer& server) : stub_(server.NewChannel()) {}

  // The answer to a request with one string field set; null if the stream failed.
  std::unique_ptr<Message> Ask(const std::string& field, const std::string& value) {
    std::unique_ptr<Message> request = New("grpc.reflection.v1alpha.ServerReflectionRequest");
    request->GetReflection()->SetString(request.get(),
                                        request->GetDescriptor()->FindFieldByName(field), value);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto call = stub_.PrepareCall(
        &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
    grpc::ByteBuffer answer;
    grpc::Status status;
    bool ok = Next(&queue, [&] { call->StartCall(nullptr); });
    ok = ok && Next(&queue, [&] { call->WriteLast(ToWire(*request), {}, nullptr); });
    ok = ok && Next(&queue, [&] { call->Read(&answer, nullptr); });
    Next(&queue, [&] { call->Finish(&status, nullptr); });
    std::unique_ptr<Message> response = New("grpc.reflection.v1alpha.ServerReflectionResponse");
    if (!ok || !ParseWire(answer, response.get()).ok()) return nullptr;
    return response;
  }

 private:
  static std::unique_ptr<Message> New(const std::string& type) {
    const auto* descriptor =
        google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(type);
    return std::unique_ptr<Message>(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor)->New());
  }
  template <typename Start>
  static bool Next(grpc::CompletionQueue* queue, const Start& start) {
    start();
    void* tag;
    bool ok = false;
    return queue->Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
};

TEST(Reflection, ListsTheServices) {
  TestServer server;
  const std::unique_ptr<Message> response = ReflectionClient(server).Ask("list_services", "*");
  ASSERT_NE(response, nullptr);
  const FieldDescriptor* list =
      response->GetDescriptor()->FindFieldByName("list_services_response");
  ASSERT_TRUE(response->GetReflection()->HasField(*response, list)) << response->DebugString();
  const Message& services = response->GetReflection()->GetMessage(*response, list);
  const FieldDescriptor* service = services.GetDescriptor()->FindFieldByName("service");
  std::set<std::string> names;
  for (int i = 0; i < services.GetReflection()->FieldSize(services, service); ++i) {
    const Message& one = services.GetReflection()->GetRepeatedMessage(services, service, i);
    names.insert(one.GetReflection()->GetString(one, one.GetDescriptor()->FindFieldByName("name")));
  }
  EXPECT_THAT(names, IsSupersetOf({"hydrant.v1.Hydrant", "grpc.health.v1.Health"}));
}

// Everything that a generic client needs to call Generate without the .proto file.
TEST(Reflection, GivesTheDescriptorOfGenerate) {
  TestServer server;
  const std::unique_ptr<Message> response =
      ReflectionClient(server).Ask("file_containing_symbol", "hydrant.v1.Hydrant");
  ASSERT_NE(response, nullptr);
  const FieldDescriptor* list =
      response->GetDescriptor()->FindFieldByName("file_descriptor_response");
  ASSERT_TRUE(response->GetReflection()->HasField(*response, list)) << response->DebugString();
  const Message& files = response->GetReflection()->GetMessage(*response, list);
  const FieldDescriptor* bytes = files.GetDescriptor()->FindFieldByName("file_descriptor_proto");
  bool found = false;
  for (int i = 0; i < files.GetReflection()->FieldSize(files, bytes); ++i) {
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(files.GetReflection()->GetRepeatedString(files, bytes, i)));
    if (file.package() != "hydrant.v1") continue;
    ASSERT_EQ(file.service_size(), 1);
    for (const auto& method : file.service(0).method()) {
      found = found || (method.name() == "Generate" && method.server_streaming());
    }
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace hydrant
