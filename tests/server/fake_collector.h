// A collector of OTLP over gRPC on a free loopback port, which stores received spans. Thread safe.
#ifndef HYDRANT_TESTS_SERVER_FAKE_COLLECTOR_H_
#define HYDRANT_TESTS_SERVER_FAKE_COLLECTOR_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"

namespace hydrant {

class FakeCollector final
    : public opentelemetry::proto::collector::trace::v1::TraceService::Service {
 public:
  using Request = opentelemetry::proto::collector::trace::v1::ExportTraceServiceRequest;
  using Response = opentelemetry::proto::collector::trace::v1::ExportTraceServiceResponse;
  using Span = opentelemetry::proto::trace::v1::Span;
  // Answers the n-th call, from 0; spans of calls not answered with OK are not stored.
  using Answer = std::function<grpc::Status(int n, Response* response)>;

  explicit FakeCollector(
      Answer answer = [](int, Response*) { return grpc::Status::OK; }, int port = 0,
      const std::shared_ptr<grpc::ServerCredentials>& credentials =
          grpc::InsecureServerCredentials())
      : answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), credentials, &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCollector() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Export(grpc::ServerContext* context, const Request* request,
                      Response* response) override {
    int n;
    {
      const std::lock_guard lock(mutex_);
      auto& metadata = metadata_.emplace_back();
      for (const auto& [key, value] : context->client_metadata())
        metadata.emplace(std::string(key.data(), key.size()),
                         std::string(value.data(), value.size()));
      n = calls_++;
    }
    const grpc::Status status = answer_(n, response);
    if (!status.ok()) return status;
    const std::lock_guard lock(mutex_);
    requests_.push_back(*request);
    changed_.notify_all();
    return status;
  }

  // Waits for `count` spans; returns fewer after a minute.
  std::vector<Span> WaitForSpans(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::minutes(1), [&] { return Spans().size() >= count; });
    return Spans();
  }
  std::vector<Request> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  using Metadata = std::multimap<std::string, std::string>;
  std::vector<Metadata> metadata() {  // one per call
    const std::lock_guard lock(mutex_);
    return metadata_;
  }
  int calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  // REQUIRES: mutex_ held
  std::vector<Span> Spans() const {
    std::vector<Span> spans;
    for (const Request& request : requests_)
      for (const auto& resource : request.resource_spans())
        for (const auto& scope : resource.scope_spans())
          spans.insert(spans.end(), scope.spans().begin(), scope.spans().end());
    return spans;
  }

  const Answer answer_;
  int port_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<Request> requests_;
  std::vector<Metadata> metadata_;
  int calls_ = 0;

  std::unique_ptr<grpc::Server> server_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_FAKE_COLLECTOR_H_
