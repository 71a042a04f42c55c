#include "server/apis/vllm_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "engine/cache/sha256.h"
#include "kernels/status_macros.h"
#include "server/apis/kv_event_stream.h"
#include "server/apis/tokenizer_archive.h"
#include "server/apis/vllm_conversion.h"
#include "server/wire/request_conversion.h"
#include "server/wire/unary_answer.h"
#include "server/wire/wire_message.h"

namespace hydrant {
namespace {

namespace common = smg::grpc::common;

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kMaxSubscriptions = 64;

template <typename Response>
using Answer = std::variant<Response, Refusal>;

absl::StatusOr<hydrant::Service::UnaryJob> ReadEmbedRequest(const ServedModel& model,
                                                            const grpc::ByteBuffer& bytes) {
  vllm::EmbedRequest wire;
  HYDRANT_RETURN_IF_ERROR(ParseWire(bytes, &wire));
  HYDRANT_ASSIGN_OR_RETURN(const v1::EmbedRequest embed, ConvertVllmEmbed(wire));
  HYDRANT_ASSIGN_OR_RETURN(Request request, ConvertEmbedRequest(model, embed));
  const auto answer = [embed](const Finished& finished) -> std::variant<grpc::ByteBuffer, Refusal> {
    vllm::EmbedResponse response;
    const std::vector<float> embedding = ConvertEmbedding(embed, finished.embedding);
    response.mutable_embedding()->Assign(embedding.begin(), embedding.end());
    response.set_embedding_dim(static_cast<uint32_t>(embedding.size()));
    response.set_prompt_tokens(static_cast<uint32_t>(finished.usage->prompt_tokens));
    return ToWire(response);
  };
  return hydrant::Service::UnaryJob{std::move(request), answer};
}

// Sends an archive in chunks. Owned by itself until gRPC is done with it.
class ArchiveStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  void Refuse(const Refusal& refusal) { Finish(ToGrpcStatus(refusal)); }
  void Send(std::string archive) {
    Sha256 hash;
    hash.Add(archive);
    digest_ = HexOf(hash.Finish());
    archive_ = std::move(archive);
    SendNext();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
    } else if (sent_ < archive_.size()) {
      SendNext();
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

 private:
  void SendNext() {
    common::GetTokenizerChunk chunk;
    chunk.set_data(archive_.substr(sent_, kChunkBytes));
    sent_ += chunk.data().size();
    if (sent_ == archive_.size()) chunk.set_sha256(digest_);
    piece_ = ToWire(chunk);
    StartWrite(&piece_);
  }

  std::string archive_, digest_;
  size_t sent_ = 0;
  grpc::ByteBuffer piece_;
};

}  // namespace

VllmService::VllmService(DefaultCache default_cache, hydrant::Service* service)
    : default_cache_(std::move(default_cache)),
      service_(service),
      subscriptions_(kMaxSubscriptions, "cache events") {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  return service_->Generate(context, bytes, NewVllmContract(&default_cache_.spec));
}

grpc::ServerUnaryReactor* VllmService::Embed(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* bytes,
                                             grpc::ByteBuffer* response) {
  return service_->RunUnary("vllm.grpc.engine.VllmEngine/Embed", context, bytes, response,
                            ReadEmbedRequest);
}

// Refused while the model loads: a gateway asks for the model after its first successful health
// check, and never again if there is none.
grpc::ServerUnaryReactor* VllmService::HealthCheck(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* bytes,
                                                   grpc::ByteBuffer* response) {
  return AnswerNow<vllm::HealthCheckRequest>(
      context, bytes, response,
      [this](const vllm::HealthCheckRequest&) -> Answer<vllm::HealthCheckResponse> {
        const ServingState serving = service_->Current();
        if (serving.model == nullptr) return *hydrant::Service::CheckReady(serving);
        vllm::HealthCheckResponse health;
        health.set_healthy(serving.state == v1::SERVER_STATE_READY);
        health.set_message(v1::ServerState_Name(serving.state));
        return health;
      });
}

// Runs on the loop's thread, which owns the cache; the call is answered when it is done.
grpc::ServerUnaryReactor* VllmService::FlushCache(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* bytes,
                                                  grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const ServingState serving = service_->Current();
  common::FlushCacheRequest wire;
  const absl::Status parsed = ParseWire(*bytes, &wire);
  if (!parsed.ok()) {
    reactor->Finish(ToGrpcStatus({parsed, "INVALID"}));
  } else if (const auto no = hydrant::Service::CheckReady(serving); no.has_value()) {
    reactor->Finish(ToGrpcStatus(*no));
  } else {
    serving.loop->WithPrefixCache([reactor, response](PrefixCache* cache) {
      common::FlushCacheResponse flushed;
      flushed.set_success(cache != nullptr);
      flushed.set_message(cache == nullptr
                              ? "the server is stopping"
                              : absl::StrCat(cache->EvictUnleased(), " blocks of prompts dropped"));
      *response = ToWire(flushed);
      reactor->Finish(grpc::Status::OK);
    });
  }
  return reactor;
}

grpc::ServerUnaryReactor* VllmService::Abort(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* bytes,
                                             grpc::ByteBuffer* response) {
  return AnswerNow<vllm::AbortRequest>(
      context, bytes, response,
      [this, context](const vllm::AbortRequest& wire) -> Answer<vllm::AbortResponse> {
        const ServingState serving = service_->Current();
        if (const auto no = hydrant::Service::CheckReady(serving)) return *no;
        const absl::StatusOr<Caller> caller = service_->CallerOf(*context);
        if (!caller.ok()) return Refusal{caller.status(), "UNAUTHENTICATED"};
        for (const std::string& id : wire.request_ids())
          serving.loop->Abort(caller->owner(), id, absl::CancelledError("aborted"));
        return vllm::AbortResponse();
      });
}

grpc::ServerUnaryReactor* VllmService::GetModelInfo(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* bytes,
                                                    grpc::ByteBuffer* response) {
  return AnswerNow<vllm::GetModelInfoRequest>(
      context, bytes, response,
      [this](const vllm::GetModelInfoRequest&) -> Answer<vllm::GetModelInfoResponse> {
        const ServingState serving = service_->Current();
        if (const auto no = hydrant::Service::CheckReady(serving)) return *no;
        return DescribeVllmModel(*serving.model);
      });
}

grpc::ServerUnaryReactor* VllmService::GetServerInfo(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* bytes,
                                                     grpc::ByteBuffer* response) {
  return AnswerNow<vllm::GetServerInfoRequest>(
      context, bytes, response,
      [this](const vllm::GetServerInfoRequest&) -> Answer<vllm::GetServerInfoResponse> {
        const ServingState serving = service_->Current();
        if (const auto no = hydrant::Service::CheckReady(serving)) return *no;
        const auto uptime = absl::FromChrono(std::chrono::steady_clock::now() - start_);
        return DescribeVllmServer(*serving.model, serving.loop->Stats(), uptime);
      });
}

grpc::ServerUnaryReactor* VllmService::GetLoads(grpc::CallbackServerContext* context,
                                                const grpc::ByteBuffer* bytes,
                                                grpc::ByteBuffer* response) {
  return AnswerNow<vllm::GetLoadsRequest>(
      context, bytes, response,
      [this](const vllm::GetLoadsRequest&) -> Answer<vllm::GetLoadsResponse> {
        const ServingState serving = service_->Current();
        if (const auto no = hydrant::Service::CheckReady(serving)) return *no;
        return DescribeVllmLoads(*serving.model, serving.loop->Stats(), service_->version(),
                                 absl::Now());
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::GetTokenizer(grpc::CallbackServerContext*,
                                                                      const grpc::ByteBuffer*) {
  const ServingState serving = service_->Current();
  auto* stream = new ArchiveStream();
  std::optional<Refusal> refusal = hydrant::Service::CheckReady(serving);
  if (!refusal.has_value()) {
    refusal = service_->RunOnWorker(0, [stream, model = serving.model] {
      const auto files = TokenizerFiles(*model);
      if (!files.ok()) return stream->Refuse({files.status(), "INVALID"});
      stream->Send(ZipOf(*files));
    });
  }
  if (refusal.has_value()) stream->Refuse(*refusal);
  return stream;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* VllmService::SubscribeKvEvents(
    grpc::CallbackServerContext*, const grpc::ByteBuffer* bytes) {
  const ServingState serving = service_->Current();
  common::SubscribeKvEventsRequest wire;
  std::optional<Refusal> refusal = hydrant::Service::CheckReady(serving);
  if (const absl::Status parsed = ParseWire(*bytes, &wire); !parsed.ok())
    refusal = Refusal{parsed, "INVALID"};
  const auto stream = std::make_shared<KvEventStream>(
      &subscriptions_, serving.loop == nullptr ? nullptr : &serving.loop->kv_events());
  if (auto no = subscriptions_.Add(stream); no.has_value()) refusal = std::move(no);
  if (refusal.has_value()) {
    stream->End(ToGrpcStatus(*refusal));
  } else {
    stream->Begin(wire.start_sequence_number());
  }
  return stream.get();
}

}  // namespace hydrant
