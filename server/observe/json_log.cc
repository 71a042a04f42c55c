#include "server/observe/json_log.h"

#include <fmt/chrono.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

// Replaces invalid UTF-8, as in a path, so that the line parses.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Rfc3339(std::chrono::system_clock::time_point time) {
  using std::chrono::duration_cast, std::chrono::milliseconds, std::chrono::seconds;
  const auto since = duration_cast<milliseconds>(time.time_since_epoch());
  const std::time_t whole = duration_cast<seconds>(since).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(whole), since.count() % 1000);
}

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const auto level = spdlog::level::to_string_view(message.level);
    Json json{{"time", Rfc3339(message.time)}, {"level", std::string(level.data(), level.size())}};
    const std::string_view text(message.payload.data(), message.payload.size());
    const std::string_view logger(message.logger_name.data(), message.logger_name.size());
    if (logger == kFieldsLogger) {
      json.update(Json::parse(text));
    } else {
      json["message"] = text;
    }
    const std::string dumped = Dump(json) + "\n";
    line.append(dumped.data(), dumped.data() + dumped.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return NewJsonFormatter(); }
};

}  // namespace

std::string RequestFields(const RequestRecord& record) {
  const Usage& usage = *record.usage;
  const auto millis = [](TimeUs us) { return static_cast<double>(us) / 1000; };
  Json fields({{"message", "request ended"},
               {"request_id", record.request_id},
               {"outcome", record.outcome},
               {"reason", record.reason},
               {"tenant", record.tenant},
               {"cache_policy", PolicyOf(record)},
               {"compressed_by", usage.compressed_by},
               {"prompt_tokens", usage.prompt_tokens},
               {"cached_tokens", usage.cached_tokens},
               {"recalled_tokens", usage.recalled_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"samples", record.samples},
               {"kv_tokens_kept_mean", usage.kv_tokens_kept_mean},
               {"kv_tokens_evicted_mean", usage.kv_tokens_evicted_mean},
               {"kv_bytes", usage.kv_bytes},
               {"kv_bytes_of_full", usage.kv_bytes_of_full},
               {"kv_tokens_kept", usage.kv_tokens_kept},
               {"kv_tokens_evicted", usage.kv_tokens_evicted},
               {"kv_pages_peak", usage.kv_pages_peak},
               {"kv_pages_mean", usage.kv_pages_mean},
               {"preemptions", usage.preemptions},
               {"swaps", usage.swaps},
               {"shrinks", usage.shrinks},
               {"queue_ms", millis(usage.queue_us)},
               {"prefill_ms", millis(usage.prefill_us)},
               {"decode_ms", millis(usage.decode_us)},
               {"swapped_ms", millis(usage.swapped_us)},
               {"preempted_ms", millis(usage.preempted_us)}});
  if (record.trace != nullptr) {
    fields["trace_id"] = ToHex(record.trace->trace_id);
    fields["span_id"] = ToHex(record.trace->span_id);
  }
  return Dump(fields);
}

std::unique_ptr<spdlog::formatter> NewJsonFormatter() { return std::make_unique<JsonFormatter>(); }

}  // namespace hydrant
