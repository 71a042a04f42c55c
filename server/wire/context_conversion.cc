#include "server/wire/context_conversion.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/wire/request_conversion.h"
#include "server/wire/wire_events.h"

namespace hydrant {
namespace {

constexpr size_t kMaxHandleBytes = 128;
// Ten years, longer than any context is worth keeping.
constexpr uint64_t kMaxTtl = 10ull * 366 * 24 * 3600;

constexpr uint64_t kMicroseconds = 1'000'000;

absl::Status WrongContext(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

bool IsHandleChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

absl::Status CheckCompression(const v1::CompressContextRequest& wire) {
  if (wire.cache().question_tokens() > 0 || wire.cache().question_agnostic()) {
    return WrongContext(absl::StrCat(
        "cache.", wire.cache().question_agnostic() ? "question_agnostic" : "question_tokens",
        ": a context is compressed before any question is known; leave it unset"));
  }
  if (wire.has_handle()) HYDRANT_RETURN_IF_ERROR(CheckHandle(wire.handle()));
  if (wire.has_ttl_s() && (wire.ttl_s() < 1 || wire.ttl_s() > kMaxTtl))
    return WrongContext(absl::StrCat("ttl_s: ", wire.ttl_s(), " is outside [1, ", kMaxTtl, "]"));
  return absl::OkStatus();
}

// The equivalent Generate request; it stops after the prefill.
v1::GenerateRequest AsGenerateRequest(const v1::CompressContextRequest& wire) {
  v1::GenerateRequest request;
  if (wire.has_request_id()) request.set_request_id(wire.request_id());
  if (wire.has_model()) request.set_model(wire.model());
  if (wire.has_text()) request.set_text(wire.text());
  if (wire.has_parse_special_tokens())
    request.set_parse_special_tokens(wire.parse_special_tokens());
  if (wire.has_token_ids()) *request.mutable_token_ids() = wire.token_ids();
  if (wire.has_chat()) {
    *request.mutable_chat() = wire.chat();
    if (!wire.chat().has_add_generation_prompt())
      request.mutable_chat()->set_add_generation_prompt(false);
  }
  *request.mutable_cache() = wire.cache();
  v1::Cache* cache = request.mutable_cache();
  if (!cache->has_cache_policy()) cache->set_cache_policy("auto");
  const bool has_budget =
      cache->has_cache_ratio() || cache->has_max_cache_tokens() || cache->has_min_retained_mass();
  if (cache->cache_policy() == "auto" && !has_budget) cache->set_cache_ratio(kDefaultCacheRatio);
  request.mutable_stopping()->set_max_tokens(1);
  request.set_keep(true);
  return request;
}

}  // namespace

ContextHome HomeOf(const ServedModel& model) {
  return {.model = model.fingerprint,
          .layout = model.kv_layout,
          .limits = model.limits,
          .vocab_size = model.tokenizer->VocabSize()};
}

absl::Status CheckHandle(const std::string& handle) {
  if (handle.empty()) return WrongContext("handle: is empty; give that of a context");
  if (handle.size() > kMaxHandleBytes) {
    return WrongContext(absl::StrCat("handle: has ", handle.size(), " bytes; at most ",
                                     kMaxHandleBytes, " are allowed"));
  }
  if (handle.front() == '.' || !std::all_of(handle.begin(), handle.end(), IsHandleChar))
    return WrongContext(
        "handle: may hold A-Z, a-z, 0-9, '.', '_' and '-', and does not begin with '.'");
  return absl::OkStatus();
}

absl::StatusOr<Request> ConvertCompressRequest(const ServedModel& model,
                                               const v1::CompressContextRequest& wire,
                                               int64_t unix_now) {
  HYDRANT_RETURN_IF_ERROR(CheckCompression(wire));
  HYDRANT_ASSIGN_OR_RETURN(Request request, ConvertGenerateRequest(model, AsGenerateRequest(wire)));
  if (model.limits.MaxContexts() == 0) {
    return absl::UnimplementedError(
        "this server keeps no contexts; start it with a --context-memory-bytes that holds one");
  }
  request.prefill_only = true;
  if (wire.has_handle()) request.keep_as.handle = wire.handle();
  if (wire.has_ttl_s()) request.keep_as.expires_at = unix_now + static_cast<int64_t>(wire.ttl_s());
  request.keep_as.pinned = wire.pinned();
  return request;
}

v1::Context ToWireContext(const ServedModel& model, const ContextArchive::Entry& entry) {
  v1::Context wire;
  wire.set_handle(ToValidUtf8(entry.id.handle));
  wire.set_in_memory(entry.context != nullptr);
  if (entry.stored_bytes >= 0) wire.set_stored_bytes(entry.stored_bytes);
  if (entry.context == nullptr) return wire;
  const Context& context = *entry.context;
  wire.set_tokens(static_cast<uint32_t>(context.tokens.size()));
  wire.set_kv_entries(context.entries);
  wire.set_memory_bytes(context.pages * model.kv_layout.BytesWithState());
  wire.set_cache_policy(context.spec.policy);
  if (context.retained_mass.has_value())
    *wire.mutable_retained_mass() = ToWireMass(*context.retained_mass);
  wire.set_created_us(context.created_at * kMicroseconds);
  if (context.expires_at > 0) wire.set_expires_us(context.expires_at * kMicroseconds);
  wire.set_pinned(context.pinned);
  return wire;
}

Refusal ContextRefusal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return {status, "UNKNOWN_CONTEXT"};
    case absl::StatusCode::kFailedPrecondition:
      return {status, "CONTEXT_MISMATCH"};
    case absl::StatusCode::kUnimplemented:
      return {status, "NO_CONTEXTS"};
    case absl::StatusCode::kDataLoss:
      return {status, "CONTEXT_DAMAGED"};
    case absl::StatusCode::kResourceExhausted:
      return {status, "NO_ROOM"};
    case absl::StatusCode::kInvalidArgument:
      return {status, "INVALID"};
    default:
      return {status, "STORE_UNAVAILABLE"};
  }
}

}  // namespace hydrant
