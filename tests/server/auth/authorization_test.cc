// Access rules: every method with every kind of token, and isolation of tenants.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/apis/control_service.h"
#include "server/auth/call_authorizer.h"
#include "server/auth/call_rules.h"
#include "server/auth/tenants.h"
#include "tests/server/random_model_server.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/server/token_entry.h"
#include "vllm/grpc/engine/engine.grpc.pb.h"

namespace hydrant {
namespace {

using google::protobuf::DescriptorPool;
using grpc::StatusCode;
using testing::HasSubstr;
namespace engine = vllm::grpc::engine;

// A token file. A tenant's token is "token-of-" and its name.
class TokensOnDisk {
 public:
  explicit TokensOnDisk(const std::string& quotas = "") {
    Write(absl::StrCat(EntryOf("acme", "token-of-acme", quotas), EntryOf("zeta", "token-of-zeta"),
                       EntryOf("operator", "token-of-operator", ", admin: true"),
                       EntryOf("acme", "old-token", ", expires: 2020-01-01T00:00:00Z")));
    auto loaded = Tenants::Load(folder_.Path("tokens.yaml"));
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    tenants = *std::move(loaded);
  }
  void Write(const std::string& entries) { folder_.Write("tokens.yaml", "tokens:\n" + entries); }

  std::unique_ptr<Tenants> tenants;

 private:
  TemporaryFolder folder_;
};

void AddToken(grpc::ClientContext* context, const std::string& token) {
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
}

// Calls any method with an empty message, and reads to its first answer.
grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& token) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  AddToken(&context, token);
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  stream->StartCall(nullptr);
  wait();
  const grpc::Slice nothing;
  stream->WriteLast(grpc::ByteBuffer(&nothing, 1), grpc::WriteOptions(), nullptr);
  wait();
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  // An endless stream was admitted.
  if (wait()) return grpc::Status::OK;
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  return status;
}

std::vector<std::string> MethodsOf(const std::string& service) {
  std::vector<std::string> methods;
  const auto* descriptor = DescriptorPool::generated_pool()->FindServiceByName(service);
  if (descriptor == nullptr) return methods;
  for (int i = 0; i < descriptor->method_count(); ++i)
    methods.push_back(absl::StrCat("/", service, "/", descriptor->method(i)->name()));
  return methods;
}

// The services listed by the server's reflection.
std::set<std::string> ServicesOf(const std::shared_ptr<grpc::Channel>& channel) {
  const auto make = [](const char* name) {
    const auto* type = DescriptorPool::generated_pool()->FindMessageTypeByName(name);
    return std::unique_ptr<google::protobuf::Message>(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
  };
  const auto request = make("grpc.reflection.v1alpha.ServerReflectionRequest");
  request->GetReflection()->SetString(
      request.get(), request->GetDescriptor()->FindFieldByName("list_services"), "*");
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  stream->StartCall(nullptr);
  wait();
  const grpc::Slice bytes(request->SerializeAsString());
  stream->WriteLast(grpc::ByteBuffer(&bytes, 1), grpc::WriteOptions(), nullptr);
  wait();
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  EXPECT_TRUE(wait());
  const auto response = make("grpc.reflection.v1alpha.ServerReflectionResponse");
  grpc::Slice whole;
  EXPECT_TRUE(answer.DumpToSingleSlice(&whole).ok());
  EXPECT_TRUE(response->ParseFromArray(whole.begin(), static_cast<int>(whole.size())));
  const auto& list = response->GetReflection()->GetMessage(
      *response, response->GetDescriptor()->FindFieldByName("list_services_response"));
  const auto* services = list.GetDescriptor()->FindFieldByName("service");
  std::set<std::string> names;
  for (int i = 0; i < list.GetReflection()->FieldSize(list, services); ++i) {
    const auto& service = list.GetReflection()->GetRepeatedMessage(list, services, i);
    names.insert(service.GetReflection()->GetString(
        service, service.GetDescriptor()->FindFieldByName("name")));
  }
  return names;
}

// A server with a public port and a control port.
class TwoPorts {
 public:
  explicit TwoPorts(const Tenants* tenants)
      : server_([&] {
          TestServerOptions options;
          options.tenants = tenants;
          options.grpc.authorizer.has_control = true;
          return options;
        }()) {
    control_ = *GrpcServer::Start(
        {.listen = "127.0.0.1:0",
         .authorizer = {.tenants = tenants, .has_control = true, .is_control = true},
         .control = &control_service_},
        server_.service.get());
  }
  std::shared_ptr<grpc::Channel> Public() const { return server_.NewChannel(); }
  std::shared_ptr<grpc::Channel> Control() const {
    return grpc::CreateChannel("127.0.0.1:" + std::to_string(control_->port()),
                               grpc::InsecureChannelCredentials());
  }

 private:
  TestServer server_;
  ControlService control_service_{[] {}, [] { return v1::DrainProgress(); }};
  std::unique_ptr<GrpcServer> control_;
};

TEST(CallRules, EveryMethodOfTheServerHasOne) {
  TwoPorts ports(nullptr);
  std::set<std::string> services = ServicesOf(ports.Control());
  // Services that reflection must find, so that the test is not empty.
  for (const char* name :
       {"hydrant.v1.Hydrant", "hydrant.v1.Control", "vllm.grpc.engine.VllmEngine",
        "inference.GRPCInferenceService", "xds.service.orca.v3.OpenRcaService",
        "grpc.channelz.v1.Channelz", "grpc.reflection.v1alpha.ServerReflection"})
    EXPECT_TRUE(services.contains(name)) << name;
  services.insert("grpc.health.v1.Health");  // it does not list itself
  std::set<std::string> methods;
  for (const std::string& service : services) {
    const std::vector<std::string> its = MethodsOf(service);
    EXPECT_FALSE(its.empty()) << service;
    methods.insert(its.begin(), its.end());
  }
  for (const std::string& method : methods)
    EXPECT_NE(FindCallRule(method), nullptr) << method << " needs a line in call_rules.cc";
  for (const CallRule& rule : CallRules())
    EXPECT_TRUE(methods.contains(std::string(rule.method))) << rule.method << " is no method";
}

// The result of each method for each kind of token, at both ports.
TEST(Authorization, EveryMethodWithEveryToken) {
  const TokensOnDisk disk;
  TwoPorts ports(disk.tenants.get());
  const auto at_public = ports.Public(), at_control = ports.Control();
  const std::map<std::string, Access> tokens = {{"", Access::kAnyone},
                                                {"wrong", Access::kAnyone},
                                                {"old-token", Access::kAnyone},
                                                {"token-of-acme", Access::kTenant},
                                                {"token-of-operator", Access::kAdmin}};
  for (const CallRule& rule : CallRules()) {
    for (const auto& [token, is] : tokens) {
      for (const bool control : {false, true}) {
        const grpc::Status status =
            Call(control ? at_control : at_public, std::string(rule.method), token);
        const auto where =
            absl::StrCat(std::string(rule.method), " with '", token, "' at the ",
                         control ? "control" : "public", " port: ", status.error_message());
        if (!control && rule.ports != Ports::kAll) {
          EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED) << where;
        } else if (rule.access == Access::kAnyone || rule.access <= is) {
          EXPECT_NE(status.error_code(), StatusCode::UNAUTHENTICATED) << where;
          EXPECT_NE(status.error_code(), StatusCode::PERMISSION_DENIED) << where;
          EXPECT_NE(status.error_code(), StatusCode::UNIMPLEMENTED) << where;
        } else if (is == Access::kAnyone) {
          EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << where;
        } else {
          EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED) << where;
        }
      }
    }
  }
}

TEST(Authorization, WithoutTokensOrAControlPortAllIsAllowed) {
  TestServer server;
  for (const CallRule& rule : CallRules()) {
    const grpc::Status status = Call(server.NewChannel(), std::string(rule.method), "");
    if (rule.ports == Ports::kControlOnly) {
      EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED) << rule.method;
    } else {
      EXPECT_NE(status.error_code(), StatusCode::UNAUTHENTICATED) << rule.method;
      EXPECT_NE(status.error_code(), StatusCode::PERMISSION_DENIED) << rule.method;
      EXPECT_NE(status.error_code(), StatusCode::UNIMPLEMENTED) << rule.method;
    }
  }
}

TEST(Authorization, UnknownMethodsAreUnimplemented) {
  const TokensOnDisk disk;
  TestServerOptions options;
  options.tenants = disk.tenants.get();
  TestServer server(options);
  for (const char* method : {"/sglang.grpc.scheduler.SglangScheduler/HealthCheck", "/", "/x",
                             "/hydrant.v1.Hydrant/generate"}) {
    for (const char* token : {"", "token-of-acme"})
      EXPECT_EQ(Call(server.NewChannel(), method, token).error_code(), StatusCode::UNIMPLEMENTED)
          << method;
  }
}

TEST(Authorization, AuthorizationIsOneBearer) {
  const TokensOnDisk disk;
  TestServerOptions options;
  options.tenants = disk.tenants.get();
  TestServer server(options);
  const auto ask = [&](const std::vector<std::string>& values) {
    grpc::ClientContext context;
    for (const std::string& value : values) context.AddMetadata("authorization", value);
    v1::GetModelInfoResponse response;
    return server.stub().GetModelInfo(&context, {}, &response);
  };
  EXPECT_TRUE(ask({"Bearer token-of-acme"}).ok());
  EXPECT_TRUE(ask({"bearer token-of-acme"}).ok()) << "a scheme's name has no case";
  for (const auto& values :
       std::vector<std::vector<std::string>>{{"token-of-acme"},
                                             {"Basic token-of-acme"},
                                             {"Bearer"},
                                             {"Bearer "},
                                             {"Bearer  token-of-acme"},
                                             {"Bearer token-of-acme "},
                                             {"Bearer TOKEN-OF-ACME"},
                                             {"Bearer token-of-acme", "Bearer token-of-acme"}}) {
    EXPECT_EQ(ask(values).error_code(), StatusCode::UNAUTHENTICATED) << values.front();
  }
}

TEST(Authorization, TheTenantIsTheTokens) {
  const TokensOnDisk disk;
  TestServerOptions options;
  options.tenants = disk.tenants.get();
  TestServer server(options);
  const auto ask = [&](const std::string& tenant) {
    v1::GenerateRequest request = TextRequest("x", 2);
    if (!tenant.empty()) request.mutable_scheduling()->set_tenant(tenant);
    grpc::ClientContext context;
    AddToken(&context, "token-of-acme");
    return RunToEnd(server.stub(), request, &context).status;
  };
  EXPECT_TRUE(ask("").ok());
  EXPECT_TRUE(ask("acme").ok());
  const grpc::Status other = ask("zeta");
  EXPECT_EQ(other.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(DetailsOf(other).reason, "OTHER_TENANT");
  EXPECT_THAT(other.error_message(), HasSubstr("scheduling.tenant: is zeta"));
}

TEST(Authorization, ATokenThatWasTakenBackIsNoGoodAnyMore) {
  TokensOnDisk disk;
  TestServerOptions options;
  options.tenants = disk.tenants.get();
  TestServer server(options);
  const auto ask = [&] {
    grpc::ClientContext context;
    AddToken(&context, "token-of-acme");
    return RunToEnd(server.stub(), TextRequest("x", 2), &context).status.error_code();
  };
  EXPECT_EQ(ask(), StatusCode::OK);
  disk.Write("  - {tenant: 3\n");
  EXPECT_FALSE(disk.tenants->Reload(0).ok());
  EXPECT_EQ(ask(), StatusCode::OK) << "a file that cannot be read changes nothing";
  disk.Write(EntryOf("zeta", "token-of-zeta"));
  EXPECT_TRUE(disk.tenants->Reload(0).ok());
  EXPECT_EQ(ask(), StatusCode::UNAUTHENTICATED);
}

TEST(Authorization, ATenantThatMissesOneReadingFindsItsQuotasAsItUsedThem) {
  constexpr TimeUs kSecond = 1'000'000;
  TokensOnDisk disk(", quotas: {requests_per_minute: 2}");
  const auto account = [&] {
    return disk.tenants->Identify("Bearer token-of-acme", absl::Now())->account();
  };
  const auto is_let_in = [&](TimeUs now) {
    auto admitted = account()->Admit(now);
    return std::holds_alternative<std::shared_ptr<TenantAccount::Admission>>(admitted);
  };
  EXPECT_TRUE(is_let_in(kSecond));
  EXPECT_TRUE(is_let_in(kSecond));
  EXPECT_FALSE(is_let_in(kSecond));
  const std::string of_acme =
      EntryOf("acme", "token-of-acme", ", quotas: {requests_per_minute: 2}");
  disk.Write(EntryOf("zeta", "token-of-zeta"));
  EXPECT_TRUE(disk.tenants->Reload(2 * kSecond).ok());
  disk.Write(EntryOf("other", "token-of-other"));
  EXPECT_TRUE(disk.tenants->Reload(3 * kSecond).ok()) << "and another one";
  disk.Write(of_acme);
  EXPECT_TRUE(disk.tenants->Reload(4 * kSecond).ok());
  EXPECT_FALSE(is_let_in(4 * kSecond));
  EXPECT_TRUE(is_let_in(40 * kSecond)) << "as time goes they come back";
  // An account with full quotas is forgotten.
  disk.Write(EntryOf("zeta", "token-of-zeta"));
  EXPECT_TRUE(disk.tenants->Reload(41 * kSecond).ok());
  EXPECT_TRUE(disk.tenants->Reload(200 * kSecond).ok());
  disk.Write(of_acme);
  EXPECT_TRUE(disk.tenants->Reload(201 * kSecond).ok());
  EXPECT_EQ(account()->Use().requests, 0);
}

class Tenancy : public testing::Test {
 protected:
  Tenancy()
      : server_([&] {
          TestServerOptions options;
          options.tenants = disk_.tenants.get();
          return options;
        }()) {}

  TokensOnDisk disk_;
  TestServer server_;
};

// Two tenants may use the same id at a time, and each can abort only its own.
TEST_F(Tenancy, RequestIdsAreATenants) {
  server_.engine.Pause();
  v1::GenerateRequest request = TextRequest("x", 100);
  request.set_request_id("mine");
  grpc::ClientContext acme, zeta, again;
  AddToken(&acme, "token-of-acme");
  AddToken(&zeta, "token-of-zeta");
  AddToken(&again, "token-of-acme");
  const auto of_acme = server_.stub().Generate(&acme, request);
  v1::GenerateResponse accepted;
  ASSERT_TRUE(of_acme->Read(&accepted));
  const auto of_zeta = server_.stub().Generate(&zeta, request);
  ASSERT_TRUE(of_zeta->Read(&accepted));
  EXPECT_EQ(accepted.accepted().request_id(), "mine");
  EXPECT_EQ(DetailsOf(RunToEnd(server_.stub(), request, &again).status).reason,
            "DUPLICATE_REQUEST_ID");

  grpc::ClientContext abort_context;
  AddToken(&abort_context, "token-of-zeta");
  engine::AbortRequest abort;
  abort.add_request_ids("mine");
  engine::AbortResponse aborted;
  const auto vllm = engine::VllmEngine::NewStub(server_.NewChannel());
  EXPECT_TRUE(vllm->Abort(&abort_context, abort, &aborted).ok());
  server_.engine.Resume();
  StreamResult acmes, zetas;
  ReadRest(&acme, of_acme.get(), &acmes);
  ReadRest(&zeta, of_zeta.get(), &zetas);
  EXPECT_TRUE(acmes.status.ok()) << acmes.status.error_message();
  EXPECT_EQ(zetas.status.error_code(), StatusCode::CANCELLED);
}

TEST_F(Tenancy, ALongSaltIsRefusedAsWithoutTokens) {
  const auto ask = [&](size_t bytes) {
    v1::GenerateRequest request = TextRequest("x", 2);
    request.mutable_cache()->set_cache_salt(std::string(bytes, 's'));
    grpc::ClientContext context;
    AddToken(&context, "token-of-acme");
    return RunToEnd(server_.stub(), request, &context).status;
  };
  EXPECT_TRUE(ask(256).ok());
  EXPECT_EQ(DetailsOf(ask(257)).field, "cache.cache_salt");
}

TEST(Salts, NoTwoTenantsHaveOneInCommon) {
  const auto caller = [](const std::string& tenant) {
    return Caller(std::make_shared<TenantAccount>(tenant, Quotas()), false);
  };
  EXPECT_NE(caller("a").ScopedSalt("bc"), caller("ab").ScopedSalt("c"));
  EXPECT_NE(caller("a").ScopedSalt(""), caller("b").ScopedSalt(""));
  EXPECT_NE(caller("a").ScopedSalt("x"), caller("a").ScopedSalt("y"));
  EXPECT_EQ(Caller().ScopedSalt("x"), "x");
}

// Over a real engine: cached prompts and contexts, with and without a common salt.
TEST(TenantsCaches, AreTheirOwn) {
  const TokensOnDisk disk;
  RandomModelServer server(4, 0, disk.tenants.get());
  const std::string prompt(600, 'p');
  for (const std::string& salt : {std::string(), std::string("common")}) {
    const auto ask = [&](const std::string& tenant, const std::string& context_name = "") {
      v1::GenerateRequest request = TextRequest(context_name.empty() ? prompt : "more", 3);
      request.mutable_cache()->set_cache_salt(salt);
      if (!context_name.empty()) request.set_context(context_name);
      grpc::ClientContext context;
      AddToken(&context, "token-of-" + tenant);
      return RunToEnd(*server.stub, request, &context);
    };
    EXPECT_EQ(ask("acme").usage->cached_tokens(), 0u);
    EXPECT_GT(ask("acme").usage->cached_tokens(), 0u);
    EXPECT_EQ(ask("zeta").usage->cached_tokens(), 0u) << "it was acme's";

    v1::CompressContextRequest compress;
    compress.set_text(prompt);
    compress.set_handle("book");
    compress.mutable_cache()->set_cache_salt(salt);
    v1::CompressContextResponse compressed;
    grpc::ClientContext compress_context;
    AddToken(&compress_context, "token-of-acme");
    const grpc::Status made =
        server.stub->CompressContext(&compress_context, compress, &compressed);
    ASSERT_TRUE(made.ok()) << made.error_message();

    const auto with = [&](const std::string& tenant, const auto& call) {
      grpc::ClientContext context;
      AddToken(&context, "token-of-" + tenant);
      return call(&context);
    };
    const auto get = [&](grpc::ClientContext* context) {
      v1::GetContextRequest request;
      request.set_handle("book");
      request.set_cache_salt(salt);
      v1::Context response;
      return server.stub->GetContext(context, request, &response);
    };
    const auto remove = [&](grpc::ClientContext* context) {
      v1::DeleteContextRequest request;
      request.set_handle("book");
      request.set_cache_salt(salt);
      v1::DeleteContextResponse response;
      return server.stub->DeleteContext(context, request, &response);
    };
    const auto save = [&](grpc::ClientContext* context) {
      v1::SaveContextRequest request;
      request.set_handle("book");
      request.set_cache_salt(salt);
      v1::Context response;
      return server.stub->SaveContext(context, request, &response);
    };
    const auto listed = [&](const std::string& tenant) {
      v1::ListContextsRequest request;
      request.set_cache_salt(salt);
      v1::ListContextsResponse response;
      with(tenant, [&](grpc::ClientContext* context) {
        return server.stub->ListContexts(context, request, &response);
      });
      return response.contexts_size();
    };
    EXPECT_EQ(listed("acme"), 1);
    EXPECT_EQ(listed("zeta"), 0);
    EXPECT_EQ(listed("operator"), 0);
    // Like a missing one: the error is that of an unknown handle.
    const grpc::Status others = with("zeta", get);
    EXPECT_EQ(DetailsOf(others).reason, "UNKNOWN_CONTEXT") << others.error_message();
    EXPECT_EQ(DetailsOf(ask("zeta", "book").status).reason, "UNKNOWN_CONTEXT");
    with("zeta", remove);
    EXPECT_FALSE(with("zeta", save).ok());
    EXPECT_TRUE(with("acme", get).ok()) << "another's deletion deletes nothing";
    EXPECT_TRUE(ask("acme", "book").status.ok());
    EXPECT_TRUE(with("acme", remove).ok());
    EXPECT_FALSE(with("acme", get).ok());
  }
}

// The limit covers all salts of a tenant, and conversations too.
TEST(Quotas, ContextsAreThoseThatATenantKeeps) {
  const TokensOnDisk disk(", quotas: {contexts: 2}");
  RandomModelServer server(4, 0, disk.tenants.get());
  const auto compress = [&](const std::string& tenant, const std::string& handle) {
    v1::CompressContextRequest request;
    request.set_text(std::string(100, 'c'));
    request.set_handle(handle);
    request.mutable_cache()->set_cache_salt(handle);
    v1::CompressContextResponse response;
    grpc::ClientContext context;
    AddToken(&context, "token-of-" + tenant);
    return server.stub->CompressContext(&context, request, &response);
  };
  EXPECT_TRUE(compress("acme", "a").ok());
  EXPECT_TRUE(compress("acme", "b").ok());
  const grpc::Status third = compress("acme", "c");
  EXPECT_EQ(third.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(third).reason, "QUOTA");
  EXPECT_EQ(DetailsOf(third).retry_s, 0) << "waiting does not help";
  v1::GenerateRequest keeps = TextRequest("x", 2);
  keeps.set_keep(true);
  const auto generate = [&](const std::string& tenant) {
    grpc::ClientContext context;
    AddToken(&context, "token-of-" + tenant);
    return RunToEnd(*server.stub, keeps, &context).status;
  };
  EXPECT_EQ(DetailsOf(generate("acme")).reason, "QUOTA");
  EXPECT_TRUE(generate("zeta").ok());
  EXPECT_TRUE(compress("zeta", "c").ok());
  v1::DeleteContextRequest deletion;
  deletion.set_handle("a");
  deletion.set_cache_salt("a");
  v1::DeleteContextResponse deleted;
  grpc::ClientContext context;
  AddToken(&context, "token-of-acme");
  EXPECT_TRUE(server.stub->DeleteContext(&context, deletion, &deleted).ok());
  EXPECT_TRUE(generate("acme").ok());
}

TEST(Quotas, EndWithQuotaAndATimeToRetryAfter) {
  const TokensOnDisk disk(", quotas: {requests_per_minute: 2}");
  TestServerOptions options;
  options.tenants = disk.tenants.get();
  TestServer server(options);
  const auto ask = [&](const std::string& tenant) {
    grpc::ClientContext context;
    AddToken(&context, "token-of-" + tenant);
    return RunToEnd(server.stub(), TextRequest("x", 2), &context).status;
  };
  EXPECT_TRUE(ask("acme").ok());
  EXPECT_TRUE(ask("acme").ok());
  const grpc::Status over = ask("acme");
  EXPECT_EQ(over.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(over).reason, "QUOTA");
  EXPECT_GT(DetailsOf(over).retry_s, 0);
  EXPECT_LE(DetailsOf(over).retry_s, 30);
  EXPECT_TRUE(ask("zeta").ok()) << "another tenant's are its own";
}

// One at a time, for every kind of end: the next is admitted once its client has received the end.
TEST(Quotas, ARequestRunsUntilItHasEnded) {
  const TokensOnDisk disk(", quotas: {concurrent_requests: 1}");
  TestServerOptions options;
  options.tenants = disk.tenants.get();
  TestServer server(options);
  const auto ask = [&](const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    AddToken(&context, "token-of-acme");
    return RunToEnd(server.stub(), request, &context).status;
  };
  v1::GenerateRequest wrong = TextRequest("x", 2);
  wrong.mutable_sampling()->set_temperature(-1);
  v1::GenerateRequest several = TextRequest("x", 3);
  several.mutable_sampling()->set_n(3);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(ask(TextRequest("x", 2)).ok());
    EXPECT_EQ(ask(wrong).error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_TRUE(ask(several).ok());
    v1::EmbedRequest embed;
    embed.set_text("x");
    v1::EmbedResponse embedded;
    grpc::ClientContext context;
    AddToken(&context, "token-of-acme");
    EXPECT_TRUE(server.stub().Embed(&context, embed, &embedded).ok());
  }
  server.engine.Pause();
  grpc::ClientContext first;
  AddToken(&first, "token-of-acme");
  const auto reader = server.stub().Generate(&first, TextRequest("x", 5));
  v1::GenerateResponse accepted;
  ASSERT_TRUE(reader->Read(&accepted));
  const grpc::Status second = ask(TextRequest("x", 2));
  EXPECT_EQ(DetailsOf(second).reason, "QUOTA") << second.error_message();
  server.engine.Resume();
  StreamResult rest;
  ReadRest(&first, reader.get(), &rest);
  EXPECT_TRUE(rest.status.ok());
  EXPECT_TRUE(ask(TextRequest("x", 2)).ok());
  const std::vector<Tenants::Reading> readings = disk.tenants->Read();
  EXPECT_EQ(readings.front().tenant, "acme");
  EXPECT_EQ(readings.front().use.requests, 20 * 4 + 2);
  EXPECT_EQ(readings.front().use.refused, 1);
  EXPECT_EQ(readings.front().use.running, 0);
}

TEST(Quotas, TokensAreThoseOfUsage) {
  const TokensOnDisk disk(", quotas: {tokens_per_minute: 1000}");
  TestServerOptions options;
  options.tenants = disk.tenants.get();
  TestServer server(options);
  uint64_t prompt = 0, generated = 0;
  StreamResult result;
  while (true) {
    grpc::ClientContext context;
    AddToken(&context, "token-of-acme");
    v1::GenerateRequest request = TextRequest(std::string(200, 'x'), 30);
    request.mutable_sampling()->set_n(2);
    result = RunToEnd(server.stub(), request, &context);
    if (!result.status.ok()) break;
    prompt += result.usage->prompt_tokens();
    generated += result.usage->completion_tokens();
  }
  EXPECT_EQ(DetailsOf(result.status).reason, "QUOTA");
  EXPECT_GE(prompt + generated, 1000u);
  const TenantUse use = disk.tenants->Read().front().use;
  EXPECT_EQ(use.prompt_tokens, static_cast<int64_t>(prompt));
  EXPECT_EQ(use.generation_tokens, static_cast<int64_t>(generated));
}

}  // namespace
}  // namespace hydrant
