#include "tools/load/report/report.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "tools/load/report/figures.h"
#include "tools/load/report/hit_rates.h"
#include "tools/load/report/report_page.h"
#include "tools/load/run/timeline.h"

namespace hydrant::load {
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

// vllm's per-request fields, in seconds.
void AddDetails(std::span<const Outcome> outcomes, Json* report) {
  Json input = Json::array(), output = Json::array(), ttfts = Json::array(), itls = Json::array(),
       starts = Json::array(), errors = Json::array();
  for (const Outcome& outcome : outcomes) {
    input.push_back(outcome.input_tokens);
    output.push_back(outcome.OutputTokens());
    ttfts.push_back(outcome.HasToken() ? outcome.TimeToFirstToken() : 0.0);
    Json gaps = Json::array();
    for (size_t i = 1; i < outcome.messages.size(); ++i)
      gaps.push_back(outcome.messages[i].at - outcome.messages[i - 1].at);
    itls.push_back(std::move(gaps));
    starts.push_back(outcome.intended);
    errors.push_back(outcome.ending == Ending::kFailed
                         ? fmt::format("{} {} {}", outcome.status, outcome.reason, outcome.error)
                         : "");
  }
  (*report)["input_lens"] = std::move(input);
  (*report)["output_lens"] = std::move(output);
  (*report)["ttfts"] = std::move(ttfts);
  (*report)["itls"] = std::move(itls);
  (*report)["start_times"] = std::move(starts);
  (*report)["errors"] = std::move(errors);
}

Json QualityJson(std::span<const Agreement> quality) {
  Json rows = Json::array();
  for (const Agreement& a : quality) {
    rows.push_back({{"name", a.arm},
                    {"prompts", a.prompts},
                    {"tokens", a.positions},
                    {"identical", a.IdenticalShare()},
                    {"before_difference", a.BeforeDifferenceShare()},
                    {"matched", a.MatchedShare()}});
  }
  return rows;
}

std::string HitRateWarning(const RunDescription& run, std::span<const Outcome> outcomes,
                           double warm_up) {
  std::vector<HitRate> rates;
  for (size_t i = 0; i < run.arms.size(); ++i) {
    const Measures arm = Measure(outcomes, {}, static_cast<int>(i), warm_up);
    if (arm.completed > 0) rates.push_back({run.arms[i], arm.CacheHitRate()});
  }
  return WarnOfHitRates(rates);
}

// All figures except per-request details.
Json Summarise(const RunDescription& run, std::span<const Outcome> outcomes,
               const Objectives& objectives, double warm_up) {
  Json report;
  report["date"] = run.date;
  report["endpoint_type"] = run.backend;
  report["backend"] = run.backend;
  report["label"] = run.label.empty() ? Json() : Json(run.label);
  report["model_id"] = run.model;
  report["tokenizer_id"] = run.model;
  report["num_prompts"] = run.num_prompts;
  report["request_rate"] = run.request_rate;
  report["burstiness"] = run.burstiness;
  report["max_concurrency"] = run.max_concurrency > 0 ? Json(run.max_concurrency) : Json();
  report["complete"] = run.complete;
  report["warm_up_s"] = warm_up;
  report["goodput"] = ObjectivesJson(objectives);
  const auto figures_of = [&](int arm) {
    Json figures = FiguresJson(Measure(outcomes, objectives, arm, warm_up), objectives.Any());
    // A single arm would only repeat the total.
    if (arm < 0 || run.arms.size() > 1)
      figures["timeline"] = TimelineJson(MakeTimeline(outcomes, objectives, arm), objectives.Any());
    return figures;
  };
  report.update(figures_of(-1));
  Json arms = Json::array();
  for (size_t i = 0; i < run.arms.size(); ++i) {
    Json arm = {{"name", run.arms[i]}};
    arm.update(figures_of(static_cast<int>(i)));
    arms.push_back(std::move(arm));
  }
  report["arms"] = std::move(arms);
  report["quality"] = QualityJson(run.quality);
  report["server"] = ServersJson(run.servers);
  report["options"] = run.metadata;
  report["warning"] = HitRateWarning(run, outcomes, warm_up);
  return report;
}

// Removes control characters: text of a server must not control the terminal.
std::string Printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

// A field of a CSV line (RFC 4180).
std::string Field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string Row(const char* name, const Distribution& times) {
  if (times.count == 0) return {};
  return fmt::format("  {:<10} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", name,
                     times.mean, times.p50, times.p90, times.p99, times.p999, times.max);
}

// Entries per KV head, averaged over heads and requests, and memory at the requests' ends.
std::string KeptText(const Measures& m) {
  const double seen = m.kv_tokens_kept + m.kv_tokens_evicted;
  std::string text = fmt::format("  KV entries {:.1f} % kept, {:.0f} of {:.0f} a head and request",
                                 100 * m.kv_tokens_kept / seen,
                                 m.kv_tokens_kept / static_cast<double>(m.completed),
                                 seen / static_cast<double>(m.completed));
  if (m.kv_bytes_of_full > 0) {
    const auto mib = [&](int64_t bytes) {
      return static_cast<double>(bytes) / static_cast<double>(m.completed) / (1 << 20);
    };
    text += fmt::format("; at their ends {:.2f} MiB where full would hold {:.2f}", mib(m.kv_bytes),
                        mib(m.kv_bytes_of_full));
  }
  return text + "\n";
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
  if (m.kv_tokens_evicted > 0) text += KeptText(m);
  if (m.hits > 0)
    text += fmt::format("  cached     {} of the tokens in ({:.1f} %), in {} requests\n",
                        m.cached_tokens, 100 * m.CacheHitRate(), m.hits);
  text += fmt::format("  {:<10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "ms", "mean", "p50",
                      "p90", "p99", "p99.9", "max");
  text += Row("TTFT", m.ttft);
  if (m.hits > 0) text += Row("TTFT, hit", m.ttft_hit) + Row("TTFT, miss", m.ttft_miss);
  text += Row("TPOT", m.tpot) + Row("ITL", m.itl) + Row("E2EL", m.e2el);
  text += Row("queue", m.queue) + Row("sent late", m.lateness);
  for (const auto& [error, count] : m.errors)
    text += fmt::format("  {} x {}\n", count, Printable(error));
  return text;
}

std::string ServersText(const std::vector<ServerSeries>& servers) {
  std::string text;
  for (const ServerSeries& server : servers) {
    text += fmt::format("Metrics of {}: {} scrapes", Printable(server.url), server.samples.size());
    if (server.failed > 0)
      text += fmt::format(", {} failed ({})", server.failed, Printable(server.error));
    double running = 0, most = 0, waiting = 0, usage = 0;
    for (const ServerSample& sample : server.samples) {
      running += sample.running / static_cast<double>(server.samples.size());
      most = std::max(most, sample.running);
      waiting = std::max(waiting, sample.waiting);
      usage = std::max(usage, sample.cache_usage);
    }
    if (!server.samples.empty() && std::isfinite(running))
      text += fmt::format(
          "\n  {:.1f} sequences running on average, {:.0f} at most; {:.0f} waiting at most; at "
          "most "
          "{:.0f} % of the cache in use",
          running, most, waiting, 100 * usage);
    text += '\n';
  }
  return text;
}

// Shows the quality of the answers beside their speed.
std::string QualityText(const RunDescription& run, std::span<const Outcome> outcomes,
                        double warm_up) {
  if (run.quality.empty()) return {};
  std::string text = fmt::format(
      "Answers beside those of full: {} prompts, greedily\n  {:<36} {:>12} {:>11} {:>18} {:>9}\n",
      run.quality[0].prompts, "", "tokens/s", "identical", "before difference", "matched");
  for (const Agreement& a : run.quality) {
    // "full, again" belongs to the run's full arm.
    const auto arm = std::find(run.arms.begin(), run.arms.end(), a.arm.substr(0, a.arm.find(',')));
    std::string rate;
    if (arm != run.arms.end())
      rate = fmt::format("{:.1f}",
                         Measure(outcomes, {}, static_cast<int>(arm - run.arms.begin()), warm_up)
                             .OutputThroughput());
    text += fmt::format("  {:<36} {:>12} {:>9.1f} % {:>16.1f} % {:>7.1f} %\n", a.arm, rate,
                        100 * a.IdenticalShare(), 100 * a.BeforeDifferenceShare(),
                        100 * a.MatchedShare());
  }
  return text;
}

}  // namespace

std::string ToJson(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up) {
  Json report = Summarise(run, outcomes, objectives, warm_up);
  AddDetails(outcomes, &report);
  // Text of a server may be invalid UTF-8.
  return report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ToHtml(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up) {
  Json report = Summarise(run, outcomes, objectives, warm_up);
  report["name"] = run.label.empty() ? run.model : run.label;
  return ReportPage({{"title", run.label.empty() ? "hydrant-load: " + run.model : run.label},
                     {"runs", Json::array({std::move(report)})}});
}

std::string ToCsv(const RunDescription& run, std::span<const Outcome> outcomes) {
  std::string table =
      "index,arm,ending,status,reason,intended_s,sent_s,first_token_s,last_token_s,ended_s,input_"
      "tokens,output_tokens,"
      "messages,queue_ms,kv_tokens_kept,kv_tokens_evicted,preemptions,bytes_sent,bytes_received,"
      "cached_tokens,kv_bytes,kv_bytes_of_full\n";
  for (const Outcome& o : outcomes) {
    const auto time = [&](bool first) {
      if (!o.HasToken()) return std::string();
      return fmt::format("{:.6f}", first ? o.messages.front().at : o.messages.back().at);
    };
    table += fmt::format(
        "{},{},{},{},{},{:.6f},{:.6f},{},{},{:.6f},{},{},{},{:.3f},{:.2f},{:.2f},{},{},{},{},{},{}"
        "\n",
        o.index, run.arms.empty() ? "" : Field(run.arms[o.arm]), Name(o.ending), Field(o.status),
        Field(o.reason), o.intended, o.sent, time(true), time(false), o.ended, o.input_tokens,
        o.OutputTokens(), o.messages.size(), o.queue * 1e3, o.kv_tokens_kept, o.kv_tokens_evicted,
        o.preemptions, o.bytes_sent, o.bytes_received, o.cached_tokens, o.kv_bytes,
        o.kv_bytes_of_full);
  }
  return table;
}

std::string ToText(const RunDescription& run, std::span<const Outcome> outcomes,
                   const Objectives& objectives, double warm_up) {
  std::string text = run.complete ? "" : "PARTIAL: the run was broken off.\n";
  text += Figures(Measure(outcomes, objectives, -1, warm_up), objectives,
                  fmt::format("{}, {} requests, rate {}", Printable(run.model), run.num_prompts,
                              run.request_rate));
  for (size_t i = 0; run.arms.size() > 1 && i < run.arms.size(); ++i)
    text += Figures(Measure(outcomes, objectives, static_cast<int>(i), warm_up), objectives,
                    run.arms[i]);
  if (const std::string warning = HitRateWarning(run, outcomes, warm_up); !warning.empty())
    text += fmt::format("WARNING: {}\n", Printable(warning));
  return text + ServersText(run.servers) + QualityText(run, outcomes, warm_up);
}

}  // namespace hydrant::load
