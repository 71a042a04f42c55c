// Sends spans to a collector: OTLP over gRPC, in batches, on a thread of its own. Spans wait in a
// bounded queue; what finds no room there is dropped and counted, and so is what the collector does
// not take in time, and spans that come while the circuit is open. Thread safe.
#ifndef HYDRANT_SERVER_OBSERVE_SPAN_EXPORTER_H_
#define HYDRANT_SERVER_OBSERVE_SPAN_EXPORTER_H_

#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"
#include "scheduler/store/circuit.h"
#include "server/observe/trace_headers.h"

namespace hydrant {

using Span = opentelemetry::proto::trace::v1::Span;

struct SpanExporterMetrics {
  std::atomic<uint64_t> exported{0};  // spans that a collector has taken
  std::atomic<uint64_t> dropped{0};
};

class SpanExporter {
 public:
  // The times and sizes are those of OpenTelemetry's own.
  struct Options {
    std::string address;  // host:port
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    TraceHeaders headers = {};  // the metadata of each batch
    std::string service_name, version;
    size_t max_queue_spans = 2048;
    size_t max_batch_spans = 512;
    std::chrono::milliseconds interval{5'000};
    std::chrono::milliseconds timeout{10'000};  // of a batch, with what is tried again
    // Spans were dropped by the collector, or for its silence; on the exporter's thread.
    std::function<void(const absl::Status&)> on_failure = [](const absl::Status&) {};
    Circuit::OnChange on_circuit = {};  // opens after 3 batches in a row without an answer
  };

  explicit SpanExporter(Options options);
  ~SpanExporter() { Stop(std::chrono::milliseconds(0)); }

  // All of a request's, or none of them. Does not wait.
  void Add(std::vector<Span> spans);
  // Sends what is there for so long, drops the rest, and ends the thread. Nothing is taken after.
  void Stop(std::chrono::milliseconds grace);

  const SpanExporterMetrics& metrics() const { return metrics_; }
  const Circuit& circuit() const { return circuit_; }

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  void Send(std::vector<Span> batch, grpc::ClientContext* context);
  void Drop(size_t spans, const absl::Status& why);

  const Options options_;
  const std::unique_ptr<opentelemetry::proto::collector::trace::v1::TraceService::Stub> stub_;
  SpanExporterMetrics metrics_;
  Circuit circuit_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Span> queue_;
  grpc::ClientContext* in_flight_ = nullptr;  // null: nothing is being sent
  bool stopping_ = false;
  Clock::time_point stop_by_;
  bool done_ = false;  // the thread has nothing more to do

  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_SPAN_EXPORTER_H_
