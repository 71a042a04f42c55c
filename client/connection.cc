#include "client/connection.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "client/rpc_error.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "proto/loopback.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

// Adds the token to every call. Call credentials would, too, but only over TLS.
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(std::string token) : value_("Bearer " + std::move(token)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA))
      methods->GetSendInitialMetadata()->emplace("authorization", value_);
    methods->Proceed();
  }

 private:
  const std::string value_;
};

class TokenInterceptors final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptors(std::string token) : token_(std::move(token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(token_);
  }

 private:
  const std::string token_;
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address, const Access& access) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // Channels share no subchannels: a new one connects immediately, even if older ones failed.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  UseNoProxyOnThisMachine(address, &arguments);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!access.token.empty())
    interceptors.push_back(std::make_unique<TokenInterceptors>(access.token));
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address,
      access.credentials != nullptr ? access.credentials : grpc::InsecureChannelCredentials(),
      arguments, std::move(interceptors));
}

}  // namespace

Connection::Connection(std::string address, Access access)
    : address_(std::move(address)),
      access_(std::move(access)),
      channel_(Connect(address_, access_)),
      stub_(v1::Hydrant::NewStub(channel_)) {}

grpc::Status Connection::WaitUntilServing(double seconds) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  while (true) {
    // A new channel, because one that was refused retries only after seconds.
    const auto health = grpc::health::v1::Health::NewStub(Connect(address_, access_));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = health->Check(&context, {}, &response);
    if (status.ok() && response.status() == grpc::health::v1::HealthCheckResponse::SERVING)
      return grpc::Status::OK;
    if (Clock::now() >= deadline) {
      return {grpc::StatusCode::DEADLINE_EXCEEDED,
              status.ok() ? "the server at " + address_ + " loads or drains"
                          : DescribeError(status, address_)};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void Connection::Reconnect(double seconds) {
  // The channel may not have noticed the loss yet; then the next call would fail as well.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  channel_->WaitForConnected(std::chrono::system_clock::now() +
                             std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                 std::chrono::duration<double>(seconds)));
}

}  // namespace hydrant
