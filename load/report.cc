#include "load/report.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

const char* Name(Ending ending) {
  switch (ending) {
    case Ending::kCompleted:
      return "completed";
    case Ending::kFailed:
      return "failed";
    case Ending::kFault:
      return "fault";
    case Ending::kUnfinished:
      return "unfinished";
  }
  return "";
}

void AddTimes(const char* name, const Distribution& times, Json* to) {
  (*to)[fmt::format("mean_{}_ms", name)] = times.mean;
  (*to)[fmt::format("median_{}_ms", name)] = times.p50;
  (*to)[fmt::format("std_{}_ms", name)] = times.deviation;
  (*to)[fmt::format("p90_{}_ms", name)] = times.p90;
  (*to)[fmt::format("p95_{}_ms", name)] = times.p95;
  (*to)[fmt::format("p99_{}_ms", name)] = times.p99;
  (*to)[fmt::format("p99.9_{}_ms", name)] = times.p999;
  (*to)[fmt::format("max_{}_ms", name)] = times.max;
}

Json Figures(const Measures& measures, bool has_objectives) {
  Json figures;
  figures["duration"] = measures.seconds;
  figures["completed"] = measures.completed;
  figures["failed"] = measures.failed;
  figures["total_input_tokens"] = measures.input_tokens;
  figures["total_output_tokens"] = measures.output_tokens;
  figures["request_throughput"] = measures.RequestThroughput();
  figures["request_goodput"] = has_objectives ? Json(measures.Goodput()) : Json();
  figures["output_throughput"] = measures.OutputThroughput();
  figures["total_token_throughput"] = measures.TotalThroughput();
  AddTimes("ttft", measures.ttft, &figures);
  AddTimes("tpot", measures.tpot, &figures);
  AddTimes("itl", measures.itl, &figures);
  AddTimes("e2el", measures.e2el, &figures);
  AddTimes("queue", measures.queue, &figures);
  AddTimes("send_lateness", measures.lateness, &figures);
  figures["mean_tokens_per_message"] = measures.tokens_per_message.mean;
  figures["messages"] = measures.messages;
  figures["faults"] = measures.faults;
  figures["unfinished"] = measures.unfinished;
  figures["error_counts"] = measures.errors;
  figures["bytes_sent"] = measures.bytes_sent;
  figures["bytes_received"] = measures.bytes_received;
  figures["kv_tokens_kept"] = measures.kv_tokens_kept;
  figures["kv_tokens_evicted"] = measures.kv_tokens_evicted;
  figures["preemptions"] = measures.preemptions;
  return figures;
}

// What vllm keeps of each request, in seconds.
void AddDetails(std::span<const Outcome> outcomes, Json* report) {
  Json input = Json::array(), output = Json::array(), ttfts = Json::array(), itls = Json::array(),
       errors = Json::array();
  for (const Outcome& outcome : outcomes) {
    input.push_back(outcome.input_tokens);
    output.push_back(outcome.OutputTokens());
    ttfts.push_back(outcome.HasToken() ? outcome.TimeToFirstToken() : 0.0);
    Json gaps = Json::array();
    for (size_t i = 1; i < outcome.messages.size(); ++i)
      gaps.push_back(outcome.messages[i].at - outcome.messages[i - 1].at);
    itls.push_back(std::move(gaps));
    errors.push_back(outcome.ending == Ending::kFailed
                         ? fmt::format("{} {} {}", outcome.status, outcome.reason, outcome.error)
                         : "");
  }
  (*report)["input_lens"] = std::move(input);
  (*report)["output_lens"] = std::move(output);
  (*report)["ttfts"] = std::move(ttfts);
  (*report)["itls"] = std::move(itls);
  (*report)["errors"] = std::move(errors);
}

std::string Row(const char* name, const Distribution& times) {
  if (times.count == 0) return {};
  return fmt::format("  {:<10} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", name,
                     times.mean, times.p50, times.p90, times.p99, times.p999, times.max);
}

std::string Figures(const Measures& m, const Objectives& objectives, const std::string& title) {
  std::string text = fmt::format("{}\n", title);
  text += fmt::format(
      "  requests   {} completed, {} failed, {} ordered faults, {} unfinished, in {:.2f} s\n",
      m.completed, m.failed, m.faults, m.unfinished, m.seconds);
  text += fmt::format("  per second {:.2f} requests, {:.1f} output tokens, {:.1f} tokens in all",
                      m.RequestThroughput(), m.OutputThroughput(), m.TotalThroughput());
  if (objectives.Any()) text += fmt::format(", {:.2f} good requests", m.Goodput());
  text += fmt::format("\n  tokens     {} in, {} out, {:.2f} a message\n", m.input_tokens,
                      m.output_tokens, m.tokens_per_message.mean);
  if (m.kv_tokens_evicted > 0)
    text += fmt::format("  KV entries {} kept, {} evicted (of each request's fullest head)\n",
                        m.kv_tokens_kept, m.kv_tokens_evicted);
  text += fmt::format("  {:<10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ms", "mean", "p50",
                      "p90", "p99", "p99.9", "max");
  text += Row("TTFT", m.ttft) + Row("TPOT", m.tpot) + Row("ITL", m.itl) + Row("E2EL", m.e2el);
  text += Row("queue", m.queue) + Row("sent late", m.lateness);
  for (const auto& [error, count] : m.errors) text += fmt::format("  {} x {}\n", count, error);
  return text;
}

}  // namespace

std::string ToJson(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up) {
  Json report;
  report["date"] = run.date;
  report["endpoint_type"] = run.backend;
  report["backend"] = run.backend;
  report["label"] = nullptr;
  report["model_id"] = run.model;
  report["tokenizer_id"] = run.model;
  report["num_prompts"] = run.num_prompts;
  report["request_rate"] = run.request_rate;
  report["burstiness"] = run.burstiness;
  report["max_concurrency"] = run.max_concurrency > 0 ? Json(run.max_concurrency) : Json();
  report["complete"] = run.complete;
  const Measures all = Measure(outcomes, objectives, -1, warm_up);
  report.update(Figures(all, objectives.Any()));
  Json arms = Json::array();
  for (size_t i = 0; i < run.arms.size(); ++i) {
    Json arm = {{"name", run.arms[i]}};
    arm.update(
        Figures(Measure(outcomes, objectives, static_cast<int>(i), warm_up), objectives.Any()));
    arms.push_back(std::move(arm));
  }
  report["arms"] = std::move(arms);
  report["options"] = run.metadata;
  AddDetails(outcomes, &report);
  return report.dump(1) + "\n";
}

std::string ToCsv(const RunDescription& run, std::span<const Outcome> outcomes) {
  std::string table =
      "index,arm,ending,status,reason,intended_s,sent_s,first_token_s,last_token_s,ended_s,input_"
      "tokens,output_tokens,"
      "messages,queue_ms,kv_tokens_kept,kv_tokens_evicted,preemptions,bytes_sent,bytes_received\n";
  for (const Outcome& o : outcomes) {
    const auto time = [&](bool first) {
      if (!o.HasToken()) return std::string();
      return fmt::format("{:.6f}", first ? o.messages.front().at : o.messages.back().at);
    };
    table +=
        fmt::format("{},{},{},{},{},{:.6f},{:.6f},{},{},{:.6f},{},{},{},{:.3f},{},{},{},{},{}\n",
                    o.index, run.arms.empty() ? "" : run.arms[o.arm], Name(o.ending), o.status,
                    o.reason, o.intended, o.sent, time(true), time(false), o.ended, o.input_tokens,
                    o.OutputTokens(), o.messages.size(), o.queue * 1e3, o.kv_tokens_kept,
                    o.kv_tokens_evicted, o.preemptions, o.bytes_sent, o.bytes_received);
  }
  return table;
}

std::string ToText(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up) {
  std::string text = run.complete ? "" : "PARTIAL: the run was broken off.\n";
  text += Figures(
      Measure(outcomes, objectives, -1, warm_up), objectives,
      fmt::format("{}, {} requests, rate {}", run.model, run.num_prompts, run.request_rate));
  for (size_t i = 0; run.arms.size() > 1 && i < run.arms.size(); ++i)
    text += Figures(Measure(outcomes, objectives, static_cast<int>(i), warm_up), objectives,
                    run.arms[i]);
  return text;
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr)
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const int why = errno;
  const bool closed = std::fclose(file) == 0;
  if (written && closed) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": ", std::strerror(written ? errno : why)));
}

}  // namespace hydrant
