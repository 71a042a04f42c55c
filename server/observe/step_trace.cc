#include "server/observe/step_trace.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace hydrant {

namespace {

// Bytes that may wait to be written.
constexpr size_t kMaxWaitingBytes = size_t{16} << 20;

int64_t Whole(double value) { return std::llround(value); }

// The format allows an unterminated array, so the file may end after any line.
constexpr std::string_view kBegin =
    R"([{"ph":"M","pid":1,"name":"process_name","args":{"name":"hydrantd"}})";

// Refuses files other than traces, so that they are not overwritten, and pipes and folders.
absl::Status CheckPath(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(there) || std::filesystem::is_character_file(there))
    return absl::OkStatus();
  if (!std::filesystem::is_regular_file(there))
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no regular file: name one, or a path where none is"));
  std::string begin(kBegin.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (file.gcount() == 0 || begin == kBegin) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, " holds something else than a trace of steps: move it away, or name another path"));
}

std::string Counter(const char* name, TimeUs at, const std::string& values) {
  return absl::StrCat(R"({"ph":"C","pid":1,"name":")", name, R"(","ts":)", at, R"(,"args":{)",
                      values, "}}");
}

}  // namespace

StepTrace::StepTrace(std::unique_ptr<FileWriter> file) : file_(std::move(file)) {
  text_ = kBegin;
  Write(R"({"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"steps"}})");
}

absl::StatusOr<std::unique_ptr<StepTrace>> StepTrace::Open(const std::string& path) {
  HYDRANT_RETURN_IF_ERROR(CheckPath(path));
  HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<FileWriter> file,
                           FileWriter::Open(path, kMaxWaitingBytes));
  return std::unique_ptr<StepTrace>(new StepTrace(std::move(file)));
}

StepTrace::~StepTrace() {
  text_ += "\n]\n";
  if (is_writing_) Send();
}

void StepTrace::Write(const std::string& event) { absl::StrAppend(&text_, ",\n", event); }

void StepTrace::Send() {
  const absl::Status written = file_->Write(std::exchange(text_, {}));
  if (written.ok()) return;
  spdlog::warn("--trace-steps: {}; the trace ends here", std::string(written.message()));
  is_writing_ = false;
}

void StepTrace::AddStep(const StepTaken& step, const ServingStats& stats) {
  if (step.work.Empty()) return;
  Write(absl::StrCat(R"({"ph":"X","pid":1,"tid":1,"name":")",
                     step.work.prompt_tokens > 0 ? "prompts and decode" : "decode", R"(","ts":)",
                     step.begin, R"(,"dur":)", step.end - step.begin, R"(,"args":{"decoding":)",
                     Whole(step.work.rows), R"(,"pages":)", Whole(step.work.pages),
                     R"(,"prompt_tokens":)", Whole(step.work.prompt_tokens), R"(,"prompt_pairs":)",
                     Whole(step.work.prompt_pairs), R"(,"predicted_us":)", Whole(step.predicted_us),
                     "}}"));
  Write(Counter("requests", step.end,
                absl::StrCat(R"("running":)", stats.running, R"(,"prefilling":)", stats.prefilling,
                             R"(,"waiting":)", stats.waiting)));
  Write(Counter("pages", step.end,
                absl::StrCat(R"("used":)", stats.pages_total - stats.pages_free, R"(,"swapped":)",
                             stats.swapped_pages)));
}

void StepTrace::AddEnd(RequestHandle handle, const Usage& usage, const char* how, TimeUs now) {
  TimeUs at = now - usage.queue_us - usage.prefill_us - usage.decode_us;
  const auto phase = [&](const char* name, TimeUs us, const std::string& args) {
    if (us <= 0) return;
    const std::string head =
        absl::StrCat(R"({"cat":"request","pid":1,"id":)", handle, R"(,"name":")", name, R"(",)");
    Write(absl::StrCat(head, R"("ph":"b","ts":)", at, R"(,"args":{)", args, "}}"));
    at += us;
    Write(absl::StrCat(head, R"("ph":"e","ts":)", at, "}"));
  };
  phase("queued", usage.queue_us, "");
  phase("prompt", usage.prefill_us,
        absl::StrCat(R"("tokens":)", usage.prompt_tokens, R"(,"cached":)", usage.cached_tokens));
  phase("decode", usage.decode_us,
        absl::StrCat(R"("tokens":)", usage.completion_tokens, R"(,"pages_peak":)",
                     usage.kv_pages_peak, R"(,"preemptions":)", usage.preemptions, R"(,"swaps":)",
                     usage.swaps, R"(,"shrinks":)", usage.shrinks, R"(,"swapped_us":)",
                     usage.swapped_us, R"(,"preempted_us":)", usage.preempted_us, R"(,"end":")",
                     how, R"(")"));
}

void StepTrace::Add(const StepTaken& step, const ServingStats& stats,
                    const std::vector<Event>& events) {
  if (!is_writing_) return;
  AddStep(step, stats);
  for (const Event& event : events) {
    if (const auto* finished = std::get_if<Finished>(&event.what)) {
      AddEnd(event.handle, finished->usage,
             finished->reason == FinishReason::kStop ? "stop" : "length", step.end);
    } else if (const auto* failed = std::get_if<Failed>(&event.what)) {
      AddEnd(event.handle, failed->usage, failed->reason.c_str(), step.end);
    }
  }
  Send();
}

}  // namespace hydrant
