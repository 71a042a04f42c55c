#include "tools/load/targets/hydrant_target.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/connection.h"
#include "client/rpc_error.h"
#include "hydrant/v1/hydrant.grpc.pb.h"
#include "kernels/status_macros.h"
#include "tools/load/targets/own_connection.h"

namespace hydrant::load {
namespace {

using Clock = std::chrono::steady_clock;

// Text is tokenized in pieces of about this size, cut at spaces.
constexpr size_t kTokenizeBytes = size_t{1} << 20;
// gRPC's timers have millisecond resolution: the queue sleeps until this many seconds before the
// deadline, then polls.
constexpr double kOversleep = 1.5e-3;

// A stream. It has one pending operation at a time, tagged with the stream.
struct Stream {
  enum class State : uint8_t { kStarting, kPausing, kReading, kFinishing };

  int64_t index = 0;
  double read_delay = 0.0;
  State state = State::kStarting;
  grpc::ClientContext context;
  std::optional<OwnConnection> own;  // for an injected disconnect
  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateResponse>> reader;
  v1::GenerateResponse response;
  grpc::Status status;
  grpc::Alarm pause;
  StreamEvent end;      // collected so far
  uint64_t unseen = 0;  // bytes of messages without an event
};

void SetUsage(const v1::Usage& usage, StreamEvent* end) {
  end->has_usage = true;
  end->prompt_tokens = usage.prompt_tokens();
  end->queue = static_cast<double>(usage.queue_us()) * 1e-6;
  // Older servers report no mean: use the fullest head's.
  const bool has_mean = usage.has_kv_tokens_kept_mean();
  end->kv_tokens_kept = has_mean ? usage.kv_tokens_kept_mean() : usage.kv_tokens_kept();
  end->kv_tokens_evicted = has_mean ? usage.kv_tokens_evicted_mean() : usage.kv_tokens_evicted();
  end->kv_bytes = static_cast<int64_t>(usage.kv_bytes());
  end->kv_bytes_of_full = static_cast<int64_t>(usage.kv_bytes_of_full());
  end->preemptions = usage.preemptions();
  end->cached_tokens = usage.cached_tokens();
}

constexpr char kResumable[] = "RESUMABLE";

void SetSampling(const Sampling& from, v1::Sampling* to) {
  to->set_temperature(from.temperature);
  if (from.top_p.has_value()) to->set_top_p(*from.top_p);
  if (from.top_k.has_value()) to->set_top_k(*from.top_k);
  if (from.min_p.has_value()) to->set_min_p(*from.min_p);
  if (from.repetition_penalty.has_value()) to->set_repetition_penalty(*from.repetition_penalty);
  if (from.presence_penalty.has_value()) to->set_presence_penalty(*from.presence_penalty);
  if (from.frequency_penalty.has_value()) to->set_frequency_penalty(*from.frequency_penalty);
}

// The usage of a stream that ended with an error.
void SetFromTrailer(const grpc::ClientContext& context, StreamEvent* end) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("hydrant-usage-bin");
  v1::Usage usage;
  if (found != trailers.end() &&
      usage.ParseFromArray(found->second.data(), static_cast<int>(found->second.size())))
    SetUsage(usage, end);
}

// A random salt: prompts of earlier runs or probes in the server's prefix cache must not be hits
// for this target.
std::string DrawSalt() {
  std::random_device random;
  return absl::StrCat("hydrant-load-", absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8));
}

}  // namespace

struct HydrantTarget::Impl {
  HydrantTargetOptions options;
  const std::string salt = DrawSalt();
  TargetInfo info;
  std::vector<std::unique_ptr<Connection>> connections;
  bool plain = true;  // neither TLS nor a token
  grpc::CompletionQueue queue;
  std::unordered_map<int64_t, std::unique_ptr<Stream>> streams;
  Clock::time_point start = Clock::now();
  size_t next_connection = 0;

  v1::GenerateRequest ToWire(const PlannedRequest& request) const {
    v1::GenerateRequest wire;
    wire.mutable_token_ids()->mutable_ids()->Assign(request.prompt.begin(), request.prompt.end());
    SetSampling(options.sampling, wire.mutable_sampling());
    if (request.fault == Fault::kMalformed) wire.mutable_sampling()->set_temperature(-1.0);
    wire.mutable_sampling()->set_seed(request.seed);
    wire.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(request.max_tokens));
    wire.mutable_stopping()->set_ignore_eos(options.ignore_eos);
    *wire.mutable_cache() = options.mix[request.arm].cache;
    if (!wire.cache().has_cache_salt())
      wire.mutable_cache()->set_cache_salt(absl::StrCat(salt, "-", request.arm));
    *wire.mutable_scheduling() = options.mix[request.arm].scheduling;
    // Keeps the context for the next turn of a conversation.
    if (wire.cache().reuse() == v1::REUSE_COMPRESSED) wire.set_keep(true);
    return wire;
  }

  double Now() const { return std::chrono::duration<double>(Clock::now() - start).count(); }

  std::chrono::system_clock::time_point WallTime(double seconds_from_now) const {
    return std::chrono::system_clock::now() +
           std::chrono::duration_cast<std::chrono::system_clock::duration>(
               std::chrono::duration<double>(std::clamp(seconds_from_now, 0.0, 3600.0)));
  }

  void Read(Stream* stream) {
    stream->state = Stream::State::kReading;
    stream->reader->Read(&stream->response, stream);
  }

  void ReadSoon(Stream* stream) {
    if (stream->read_delay <= 0.0) return Read(stream);
    stream->state = Stream::State::kPausing;
    stream->pause.Set(&queue, WallTime(stream->read_delay), stream);
  }

  void Finish(Stream* stream) {
    stream->state = Stream::State::kFinishing;
    stream->reader->Finish(&stream->status, stream);
  }

  // Returns whether the message gives an event.
  bool Take(Stream* stream, StreamEvent* event) {
    const v1::GenerateResponse& response = stream->response;
    stream->unseen += response.ByteSizeLong();
    if (response.has_usage()) SetUsage(response.usage(), &stream->end);
    const auto& ids = response.delta().token_ids();
    if (ids.empty()) return false;
    *event = {.index = stream->index,
              .at = Now(),
              .tokens = ids.size(),
              .bytes = std::exchange(stream->unseen, 0)};
    event->token_ids.assign(ids.begin(), ids.end());
    return true;
  }

  void End(Stream* stream, StreamEvent* event) {
    StreamEvent& end = stream->end;
    if (!stream->status.ok()) SetFromTrailer(stream->context, &end);
    end.index = stream->index;
    end.at = Now();
    end.bytes = stream->unseen;
    end.ended = true;
    end.status = CodeName(stream->status.error_code());
    end.reason = ReasonOf(stream->status);
    if (WasLost(stream->status)) end.reason = kResumable;
    end.error = stream->status.error_message();
    *event = std::move(end);
    streams.erase(stream->index);
  }

  // The pending operation completed. Returns whether it gives an event.
  bool Advance(Stream* stream, bool ok, StreamEvent* event) {
    switch (stream->state) {
      case Stream::State::kStarting:
        ok ? ReadSoon(stream) : Finish(stream);
        return false;
      case Stream::State::kPausing:
        Read(stream);
        return false;
      case Stream::State::kReading: {
        if (!ok) {
          Finish(stream);
          return false;
        }
        const bool made = Take(stream, event);
        ReadSoon(stream);
        return made;
      }
      case Stream::State::kFinishing:
        End(stream, event);
        return true;
    }
    return false;
  }

  absl::Status Connect() {
    HYDRANT_ASSIGN_OR_RETURN(const Access access, ReadAccess(options.access));
    plain = access.credentials == nullptr && access.token.empty();
    for (const std::string& address : options.addresses) {
      for (int i = 0; i < std::max(1, options.connections); ++i)
        connections.push_back(std::make_unique<Connection>(address, access));
      const grpc::Status waited = connections.back()->WaitUntilServing(options.wait_seconds);
      if (!waited.ok()) {
        return absl::UnavailableError(absl::StrCat("no server is ready at ", address, " within ",
                                                   options.wait_seconds,
                                                   " s (--wait): ", waited.error_message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Ask() {
    v1::Hydrant::Stub& stub = connections.front()->stub();
    grpc::ClientContext model_context, server_context;
    v1::GetModelInfoResponse model;
    v1::GetServerInfoResponse server;
    grpc::Status status = stub.GetModelInfo(&model_context, {}, &model);
    if (status.ok()) status = stub.GetServerInfo(&server_context, {}, &server);
    if (!status.ok())
      return absl::UnavailableError(DescribeError(status, options.addresses.front()));
    info = {.backend = "hydrant",
            .model = model.name(),
            .vocab_size = model.vocab_size(),
            .max_model_len = model.max_model_len(),
            .server_version = server.version()};
    for (const MixedArm& arm : options.mix) {
      const bool known = std::any_of(
          server.policies().begin(), server.policies().end(),
          [&](const v1::PolicyInfo& policy) { return policy.name() == arm.cache.cache_policy(); });
      if (!known) {
        return absl::InvalidArgumentError(
            absl::StrCat("mix: '", arm.name, "': the server has no policy ",
                         arm.cache.cache_policy(), "; `hydrant info` lists them"));
      }
    }
    return absl::OkStatus();
  }
};

HydrantTarget::HydrantTarget(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HydrantTarget::~HydrantTarget() {
  for (auto& [index, stream] : impl_->streams) stream->context.TryCancel();
  StreamEvent event;
  while (!impl_->streams.empty() && Wait(Now() + 5.0, &event)) {
  }
  impl_->queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (impl_->queue.Next(&tag, &ok)) {
  }
}

absl::StatusOr<std::unique_ptr<HydrantTarget>> HydrantTarget::Create(HydrantTargetOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  HYDRANT_RETURN_IF_ERROR(impl->Connect());
  HYDRANT_RETURN_IF_ERROR(impl->Ask());
  return std::unique_ptr<HydrantTarget>(new HydrantTarget(std::move(impl)));
}

const TargetInfo& HydrantTarget::info() const { return impl_->info; }

absl::StatusOr<std::vector<uint32_t>> HydrantTarget::Tokenize(const std::string& text) {
  std::vector<uint32_t> ids;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.size(), begin + kTokenizeBytes);
    if (end < text.size()) {
      const size_t space = text.rfind(' ', end);
      if (space != std::string::npos && space > begin) end = space;
    }
    v1::TokenizeRequest request;
    request.set_text(text.substr(begin, end - begin));
    request.set_add_special_tokens(false);
    request.set_parse_special_tokens(false);
    v1::TokenizeResponse response;
    grpc::ClientContext context;
    const grpc::Status status =
        impl_->connections.front()->stub().Tokenize(&context, request, &response);
    if (!status.ok())
      return absl::UnavailableError(DescribeError(status, impl_->options.addresses.front()));
    ids.insert(ids.end(), response.token_ids().begin(), response.token_ids().end());
    begin = end;
  }
  return ids;
}

void HydrantTarget::Start() { impl_->start = Clock::now(); }

double HydrantTarget::Now() { return impl_->Now(); }

uint64_t HydrantTarget::Send(const PlannedRequest& request) {
  auto stream = std::make_unique<Stream>();
  stream->index = request.index;
  stream->read_delay = request.read_delay;
  if (request.deadline > 0.0) stream->context.set_deadline(impl_->WallTime(request.deadline));
  const v1::GenerateRequest wire = impl_->ToWire(request);
  const size_t turn = impl_->next_connection++ % impl_->connections.size();
  v1::Hydrant::Stub* stub = &impl_->connections[turn]->stub();
  if (request.fault == Fault::kDisconnect && impl_->plain) {
    stream->own = OwnConnection::Open(
        impl_->options.addresses[turn / std::max(1, impl_->options.connections)]);
    if (stream->own) stub = &stream->own->stub();
  }
  stream->reader = stub->PrepareAsyncGenerate(&stream->context, wire, &impl_->queue);
  stream->reader->StartCall(stream.get());
  impl_->streams.emplace(request.index, std::move(stream));
  return wire.ByteSizeLong();
}

void HydrantTarget::Cancel(int64_t index) {
  const auto found = impl_->streams.find(index);
  if (found != impl_->streams.end()) found->second->context.TryCancel();
}

void HydrantTarget::Disconnect(int64_t index) {
  const auto found = impl_->streams.find(index);
  if (found == impl_->streams.end()) return;
  Stream& stream = *found->second;
  stream.own ? stream.own->Break() : stream.context.TryCancel();
}

bool HydrantTarget::Wait(double until, StreamEvent* event) {
  while (true) {
    void* tag = nullptr;
    bool ok = false;
    const auto deadline = impl_->WallTime(until - kOversleep - Now());
    if (impl_->queue.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT &&
        impl_->Advance(static_cast<Stream*>(tag), ok, event))
      return true;
    // Completions without an event must not delay due requests.
    if (Now() >= until) return false;
  }
}

}  // namespace hydrant::load
