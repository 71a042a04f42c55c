#include "client/event_printer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/explain_page.h"
#include "client/interrupt.h"
#include "client/rpc_error.h"
#include "kernels/standard_streams.h"

namespace hydrant {
namespace {

constexpr char kUsageTrailer[] = "hydrant-usage-bin";
constexpr double kReconnectSeconds = 5.0;

// Losses from compressing the prompt, if it was compressed.
std::string CompressionText(const v1::Usage& usage) {
  std::string text;
  if (usage.has_retained_mass()) {
    text += fmt::format(", retaining {:.1f} % of attention (worst head {:.1f} %)",
                        100 * usage.retained_mass().mean(), 100 * usage.retained_mass().minimum());
  }
  if (usage.heads_kept_whole() > 0)
    text += fmt::format(", {} heads whole", usage.heads_kept_whole());
  if (usage.has_self_tuning()) {
    text += fmt::format(", alpha {:g}, rho {:g} and {} measurement steps chosen",
                        usage.self_tuning().alpha(), usage.self_tuning().rho(),
                        usage.self_tuning().measurement_steps());
  }
  if (usage.has_auto_choice())
    text += fmt::format(", {} chosen: {}", usage.auto_choice().policy(), usage.auto_choice().why());
  if (!usage.compressed_by().empty())
    text += fmt::format(", compressed by {} for want of room", usage.compressed_by());
  if (usage.probe_tokens() > 0) text += fmt::format(", {} tokens of probe", usage.probe_tokens());
  return text;
}

// Number and total time of preemptions or swaps; "" for none.
std::string FormatIntervals(std::string_view what, uint32_t count, uint64_t us) {
  if (count == 0) return "";
  return fmt::format(", {} {} ({:.0f} ms)", count, what, static_cast<double>(us) * 1e-3);
}

// Entries in the cache at the end and tokens seen: the mean over the KV heads, because policies
// that share a budget leave some heads full.
std::string KeptText(const v1::Usage& usage) {
  const uint32_t seen = usage.kv_tokens_kept() + usage.kv_tokens_evicted();
  const double mean = usage.has_kv_tokens_kept_mean() ? usage.kv_tokens_kept_mean()
                                                      : static_cast<double>(usage.kv_tokens_kept());
  std::string text = fmt::format("KV kept all {} tokens", seen);
  if (mean < seen) {
    text = fmt::format("KV kept {:.0f} of {} tokens a head ({:.0f} %; the fullest {})", mean, seen,
                       100 * mean / seen, usage.kv_tokens_kept());
  }
  if (usage.kv_bytes() == 0) return text;
  text += ", " + SizeText(usage.kv_bytes());
  return usage.kv_bytes() < usage.kv_bytes_of_full()
             ? text + " where full would hold " + SizeText(usage.kv_bytes_of_full())
             : text;
}

// " (950 cached, 48 recalled)"; "" if nothing was reused.
std::string ReuseText(const v1::Usage& usage) {
  std::vector<std::string> parts;
  if (usage.cached_tokens() > 0) parts.push_back(fmt::format("{} cached", usage.cached_tokens()));
  if (usage.recalled_tokens() > 0)
    parts.push_back(fmt::format("{} recalled", usage.recalled_tokens()));
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", "));
}

std::string UsageLine(const v1::Usage& usage, uint32_t num_samples) {
  const double decode_s = static_cast<double>(usage.decode_us()) * 1e-6;
  // The first token of each sample belongs to the prefill.
  const double rate = decode_s > 0 && usage.completion_tokens() > num_samples
                          ? (usage.completion_tokens() - num_samples) / decode_s
                          : 0;
  return fmt::format(
      "[{} prompt{} + {} new tokens; {}{}, {} pages at most, {:.0f} on average; queue {:.0f} ms, "
      "prompt {:.0f} ms, {:.1f} tok/s{}{}{}]",
      usage.prompt_tokens(), ReuseText(usage), usage.completion_tokens(), KeptText(usage),
      CompressionText(usage), usage.kv_pages_peak(), usage.kv_pages_mean(), usage.queue_us() * 1e-3,
      usage.prefill_us() * 1e-3, rate,
      FormatIntervals("preemptions", usage.preemptions(), usage.preempted_us()),
      FormatIntervals("swaps", usage.swaps(), usage.swapped_us()),
      usage.shrinks() > 0 ? fmt::format(", cut {} times for others", usage.shrinks()) : "");
}

// A line that is overwritten; only at a terminal.
void ShowProgress(const v1::Progress& progress, bool* shown) {
  if (isatty(STDERR_FILENO) == 0) return;
  if (progress.queue_position() > 0) {
    PrintErr("\r\033[Kwaiting, place {} in the queue", progress.queue_position());
  } else {
    PrintErr("\r\033[Kreading the prompt, {} of {} tokens", progress.prompt_tokens_done(),
             progress.prompt_tokens());
  }
  *shown = true;
}

uint32_t NumSamples(const v1::GenerateRequest& request) {
  return request.sampling().has_n() ? request.sampling().n() : 1;
}

class Printer {
 public:
  Printer(const PrintOptions& options, const v1::GenerateRequest& request, Reply* reply)
      : options_(options), request_(request), num_samples_(NumSamples(request)), reply_(reply) {}

  void Print(const v1::GenerateResponse& response) {
    if (reply_ != nullptr) {
      reply_->text += response.delta().text();
      if (response.has_finished()) reply_->context = response.finished().context();
    }
    if (response.has_kept_entries()) return;
    if (options_.json) {
      PrintJson(response);
      return;
    }
    if (response.has_progress()) {
      ShowProgress(response.progress(), &progress_shown_);
      return;
    }
    ClearProgress();
    if (response.has_delta()) Add(response.delta());
    if (response.has_finished()) Finish(response.finished());
    if (response.has_usage()) PrintUsage(response.usage());
  }

  void Interrupted() {
    ClearProgress();
    WriteOutput("\n");
  }

  void End(const grpc::Status& status, const grpc::ClientContext& context,
           const std::string& address) {
    ClearProgress();
    if (status.ok()) return;
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto trailer = trailers.find(kUsageTrailer);
    v1::Usage usage;
    if (trailer != trailers.end() &&
        usage.ParseFromArray(trailer->second.data(), static_cast<int>(trailer->second.size()))) {
      PrintUsage(usage);
    }
    PrintErr("hydrant: {}\n", DescribeError(status, address));
  }

 private:
  struct Answer {
    std::string text;  // buffered until the sample ends, if there are several
    uint32_t tokens = 0;
  };

  void ClearProgress() {
    if (progress_shown_) PrintErr("\r\033[K");
    progress_shown_ = false;
  }

  void Add(const v1::Delta& delta) {
    Answer& answer = answers_[delta.index()];
    answer.tokens += delta.token_ids_size();
    if (num_samples_ > 1) {
      answer.text += delta.text();
    } else {
      WriteOutput(delta.text());
    }
  }

  void Finish(const v1::Finished& finished) {
    context_ = finished.context();
    const Answer& answer = answers_[finished.index()];
    const uint32_t limit = request_.stopping().max_tokens();
    if (finished.reason() == v1::FINISH_REASON_LENGTH && limit > 0 && answer.tokens >= limit)
      was_cut_ = true;
    if (num_samples_ == 1) return;
    PrintOut("=== {} of {}\n{}\n", finished.index() + 1, num_samples_, answer.text);
  }

  void PrintUsage(const v1::Usage& usage) {
    if (options_.json) return;
    if (num_samples_ == 1) WriteOutput("\n");
    if (options_.quiet) return;
    PrintErr("{}\n", UsageLine(usage, num_samples_));
    if (options_.show_context && !context_.empty())
      PrintErr("[kept: --context {} goes on from here]\n", context_);
    if (!was_cut_) return;
    PrintErr(
        "[cut at {} tokens: --max-tokens raises the limit, 0 lifts it; Ctrl-C ends an "
        "answer]\n",
        request_.stopping().max_tokens());
  }

  const PrintOptions& options_;
  const v1::GenerateRequest& request_;
  const uint32_t num_samples_;
  Reply* const reply_;
  bool progress_shown_ = false;
  std::map<uint32_t, Answer> answers_;  // by sample
  bool was_cut_ = false;                // a sample reached max_tokens
  std::string context_;
};

}  // namespace

std::string SizeText(uint64_t bytes) {
  return bytes < 1 << 20 ? fmt::format("{:.0f} KiB", std::ceil(static_cast<double>(bytes) / 1024))
                         : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string line;
  (void)google::protobuf::util::MessageToJsonString(message, &line, options);
  PrintOut("{}\n", line);
}

namespace {

// Updates `rest`, the request for the remaining answer if the stream is lost.
void UpdateRest(const v1::GenerateResponse& response, v1::GenerateRequest* rest) {
  if (response.has_accepted()) {
    rest->clear_request_id();  // the id is taken while the first request still runs
    rest->mutable_sampling()->set_seed(response.accepted().seed());
  }
  rest->mutable_resume_token_ids()->MergeFrom(response.delta().token_ids());
  if (response.has_delta()) rest->mutable_output()->clear_kept_entries();  // complete by now
}

grpc::Status WritePage(const ExplainPage& page, const v1::GenerateRequest& request,
                       const PrintOptions& options) {
  const auto fail = [](const std::string& why) {
    PrintErr("hydrant: {}\n", why);
    return grpc::Status(grpc::StatusCode::UNKNOWN, why);
  };
  if (!page.HasEntries())
    return fail("the server has not reported which entries it kept: is it older than this client?");
  std::ofstream file(options.explain_file, std::ios::binary);
  file << page.Html(request) << std::flush;
  if (!file) return fail("cannot write " + options.explain_file);
  if (!options.quiet) PrintErr("[the entries that the cache kept: {}]\n", options.explain_file);
  return grpc::Status::OK;
}

}  // namespace

grpc::Status GenerateAndPrint(Connection* connection, const v1::GenerateRequest& request,
                              const PrintOptions& options, Reply* reply) {
  const auto deadline = std::chrono::system_clock::now() +
                        std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000));
  Printer printer(options, request, reply);
  const int resume = NumSamples(request) == 1 ? options.resume : 0;
  v1::GenerateRequest rest = request;
  const bool explains = !options.explain_file.empty();
  if (explains) rest.mutable_output()->set_kept_entries(true);
  ExplainPage page;
  bool accepted = false;  // set by `accepted`; without it there is no stream to resume
  for (int resumed = 0;; ++resumed) {
    grpc::ClientContext context;
    if (options.timeout_s > 0) context.set_deadline(deadline);
    bool finished = false;
    const v1::GenerateRequest now = rest;
    std::optional<OnInterrupt> interrupt;
    if (options.interruptible) interrupt.emplace([&context] { context.TryCancel(); });
    const auto reader = connection->stub().Generate(&context, now);
    for (v1::GenerateResponse response; reader->Read(&response);) {
      accepted |= response.has_accepted();
      finished |= response.has_finished();
      UpdateRest(response, &rest);
      if (explains) page.Add(response);
      printer.Print(response);
      if (OutputFailed()) context.TryCancel();  // the output cannot be written
    }
    const grpc::Status status = reader->Finish();
    if (OutputFailed()) return status;  // EndOutput() prints the error
    if (options.interruptible && status.error_code() == grpc::StatusCode::CANCELLED) {
      printer.Interrupted();
      return status;
    }
    if (WasLost(status) && accepted && !finished && resumed < resume) {
      if (!options.quiet)
        PrintErr("[the stream was lost after {} tokens; taking it up again]\n",
                 rest.resume_token_ids_size());
      connection->Reconnect(kReconnectSeconds);
      continue;
    }
    printer.End(status, context, connection->address());
    return status.ok() && explains ? WritePage(page, request, options) : status;
  }
}

}  // namespace hydrant
