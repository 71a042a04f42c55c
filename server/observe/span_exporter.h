// Sends spans to a collector: OTLP over gRPC, in batches, on its own thread. Spans wait in a
// bounded queue. Spans are dropped and counted if the queue is full, if the collector does not
// accept them in time, or while the circuit is open. Thread safe.
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
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/mutex.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"
#include "scheduler/store/circuit.h"
#include "server/observe/trace_headers.h"

namespace hydrant {

using Span = opentelemetry::proto::trace::v1::Span;

struct SpanExporterMetrics {
  std::atomic<uint64_t> exported{0};  // accepted by a collector
  std::atomic<uint64_t> dropped{0};
};

class SpanExporter {
 public:
  // The defaults are OpenTelemetry's.
  struct Options {
    std::string address;  // host:port
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    TraceHeaders headers = {};  // metadata of each batch
    std::string service_name, version;
    size_t max_queue_spans = 2048;
    size_t max_batch_spans = 512;
    std::chrono::milliseconds interval{5'000};
    std::chrono::milliseconds timeout{10'000};  // for a batch, retries included
    // Called on the exporter's thread when spans were dropped because the collector rejected them
    // or did not answer.
    std::function<void(const absl::Status&)> on_failure = [](const absl::Status&) {};
    Circuit::OnChange on_circuit = {};  // opens after 3 batches in a row without an answer
  };

  explicit SpanExporter(Options options);
  ~SpanExporter() { Stop(std::chrono::milliseconds(0)); }

  // Queues all spans of a request or none. Does not block.
  void Add(std::vector<Span> spans);
  // Sends queued spans for up to `grace`, drops the rest, and ends the thread. Later spans
  // are dropped.
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

  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Span> queue_ HYDRANT_GUARDED_BY(mutex_);
  // Null: no batch is in flight.
  grpc::ClientContext* in_flight_ HYDRANT_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ HYDRANT_GUARDED_BY(mutex_) = false;
  Clock::time_point stop_by_ HYDRANT_GUARDED_BY(mutex_);
  bool done_ HYDRANT_GUARDED_BY(mutex_) = false;  // the thread has finished

  std::thread thread_;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_OBSERVE_SPAN_EXPORTER_H_
