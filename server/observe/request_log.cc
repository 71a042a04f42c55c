#include "server/observe/request_log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "engine/model/text.h"
#include "server/observe/json_log.h"

namespace hydrant {

void LogRequest(const RequestRecord& record) {
  const Usage& usage = *record.usage;
  if (const std::shared_ptr<spdlog::logger> fields = spdlog::get(kFieldsLogger)) {
    fields->info(RequestFields(record));
    return;
  }
  spdlog::info(
      "request {} {}{}: {} prompt ({} cached) + {} new tokens{}, kv {} kept {:.0f} evicted {:.0f} "
      "a head (fullest {}), {} of {} KiB that full would hold{}, {} pages (mean {:.0f}), "
      "{} preemptions, {} swaps, {} shrinks, queue {} ms, prefill {} ms, "
      "decode {} ms, of these {} ms swapped out, {} ms preempted{}",
      record.request_id, record.reason, record.tenant.empty() ? "" : " of " + Quoted(record.tenant),
      usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens,
      record.samples == 1 ? "" : fmt::format(" in {} samples", record.samples), PolicyOf(record),
      usage.kv_tokens_kept_mean, usage.kv_tokens_evicted_mean, usage.kv_tokens_kept,
      usage.kv_bytes / 1024, usage.kv_bytes_of_full / 1024,
      usage.compressed_by.empty() ? "" : fmt::format(" (compressed by {})", usage.compressed_by),
      usage.kv_pages_peak, usage.kv_pages_mean, usage.preemptions, usage.swaps, usage.shrinks,
      usage.queue_us / 1000, usage.prefill_us / 1000, usage.decode_us / 1000,
      usage.swapped_us / 1000, usage.preempted_us / 1000,
      record.trace == nullptr ? "" : fmt::format(", trace {}", ToHex(record.trace->trace_id)));
}

}  // namespace hydrant
