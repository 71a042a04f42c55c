#include "tools/simulator/report.h"

#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace hydrant::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMillis = 1e3;

bool IsGood(const SimulatedRequest& request, const load::Objectives& objectives) {
  const double tpot = request.output_tokens > 1 ? request.Tpot() : 0.0;
  return objectives.MetBy(request.Ttft(), tpot, static_cast<double>(request.longest_gap) * 1e-6,
                          request.EndToEnd());
}

std::string Percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-";
}

std::string Row(const char* name, const load::Distribution& of) {
  return fmt::format("  {:<10}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}{:>12.1f}\n", name,
                     of.mean, of.p50, of.p90, of.p99, of.p999, of.max);
}

std::string TimesOf(const Figures& figures) {
  return fmt::format("  {:<10}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "ms", "mean", "p50", "p90",
                     "p99", "p99.9", "max") +
         Row("TTFT", figures.ttft) + Row("TPOT", figures.tpot) + Row("E2EL", figures.e2el) +
         Row("queue", figures.queue);
}

std::string CountsOf(const Figures& figures, const load::Objectives& objectives) {
  std::string text = fmt::format(
      "  {} requests, {} completed: {:.3f} requests/s, {:.1f} output tokens/s, {:.1f} input "
      "tokens/s\n",
      figures.requests, figures.completed, figures.PerSecond(figures.completed),
      figures.PerSecond(figures.output_tokens), figures.PerSecond(figures.input_tokens));
  if (!objectives.Any()) return text;
  return text + fmt::format("  good: {} ({}), {:.3f} requests/s\n", figures.good,
                            Percent(static_cast<double>(figures.good),
                                    static_cast<double>(figures.requests)),
                            figures.PerSecond(figures.good));
}

std::string ErrorsOf(const SimulationResult& result) {
  std::string text;
  for (const auto& [reason, refusals] : result.errors)
    text += fmt::format("  refused: {} {}, as {}\n", refusals.count, reason, refusals.example);
  if (result.clipped > 0)
    text += fmt::format("  clipped to max_model_len: {} requests\n", result.clipped);
  return text;
}

std::string SharesOf(const SimulationResult& result) {
  const double all = std::accumulate(
      result.contended_tokens.begin(), result.contended_tokens.end(), 0.0,
      [](double sum, const auto& one) { return sum + static_cast<double>(one.second); });
  if (all == 0) return "";
  std::string text = "  tokens while every tenant had as many waiting as can run:";
  for (const auto& [tenant, tokens] : result.contended_tokens)
    text += fmt::format(" {} {}", tenant.empty() ? "(none)" : tenant,
                        Percent(static_cast<double>(tokens), all));
  return text + "\n";
}

std::string MachineOf(const SimulationResult& result, const ReportOptions& options) {
  const ServingStats& totals = result.totals;
  return fmt::format(
             "  pages: {:.1f} % in use on average, {:.1f} % at most, of {} a replica\n"
             "  sequences: {:.2f} at once on average; a replica works {:.1f} % of the time\n"
             "  {} steps, {} preemptions, {} swaps, {} shrinks, {} compressed",
             100 * result.mean_page_use, 100 * result.peak_page_use,
             totals.pages_total / options.num_replicas, result.mean_running, 100 * result.busy,
             totals.steps, totals.preemptions, totals.swaps, totals.shrinks, totals.compressed) +
         fmt::format("; of prompts {} found in the prefix cache\n",
                     Percent(static_cast<double>(totals.prefix_cache.hit_tokens),
                             static_cast<double>(totals.prefix_cache.queried_tokens)));
}

void AddDistribution(const char* name, const load::Distribution& of, Json* json) {
  const std::pair<const char*, double> values[] = {
      {"mean", of.mean}, {"std", of.deviation}, {"median", of.p50}, {"p90", of.p90},
      {"p95", of.p95},   {"p99", of.p99},       {"p99.9", of.p999}, {"max", of.max}};
  for (const auto& [which, value] : values) (*json)[fmt::format("{}_{}_ms", which, name)] = value;
}

Json JsonOf(const Figures& figures, const load::Objectives& objectives) {
  Json json;
  json["duration"] = figures.seconds;
  json["completed"] = figures.completed;
  json["failed"] = figures.requests - figures.completed;
  json["total_input_tokens"] = figures.input_tokens;
  json["total_output_tokens"] = figures.output_tokens;
  json["request_throughput"] = figures.PerSecond(figures.completed);
  if (objectives.Any()) json["request_goodput"] = figures.PerSecond(figures.good);
  json["output_throughput"] = figures.PerSecond(figures.output_tokens);
  json["cached_tokens"] = figures.cached_tokens;
  json["preemptions"] = figures.preemptions;
  AddDistribution("ttft", figures.ttft, &json);
  AddDistribution("tpot", figures.tpot, &json);
  AddDistribution("e2el", figures.e2el, &json);
  AddDistribution("queue", figures.queue, &json);
  return json;
}

Json TimelineOf(const SimulationResult& result, int num_replicas) {
  const auto width = static_cast<double>(result.timeline.width_us());
  const double pages = width * static_cast<double>(result.totals.pages_total);
  Json windows = Json::array();
  for (size_t i = 0; i < result.timeline.windows().size(); ++i) {
    const Timeline::Window& window = result.timeline.windows()[i];
    windows.push_back({{"at_s", static_cast<double>(i) * width * 1e-6},
                       {"running", window.running / width / num_replicas},
                       {"waiting", window.waiting / width / num_replicas},
                       {"page_use", window.pages / pages},
                       {"arrived", window.arrived},
                       {"ended", window.ended},
                       {"output_tokens", window.output_tokens}});
  }
  return {{"window_s", width * 1e-6}, {"windows", windows}};
}

}  // namespace

Figures MakeFigures(const SimulationResult& result, const load::Objectives& objectives, int arm) {
  Figures figures{.seconds = static_cast<double>(result.end) * 1e-6};
  std::vector<double> ttft, tpot, e2el, queue;
  for (const SimulatedRequest& request : result.requests) {
    if (arm >= 0 && request.arm != arm) continue;
    ++figures.requests;
    figures.output_tokens += request.output_tokens;
    figures.preemptions += request.preemptions;
    if (!request.completed) continue;
    ++figures.completed;
    figures.input_tokens += request.input_tokens;
    figures.cached_tokens += request.cached_tokens;
    figures.good += IsGood(request, objectives) ? 1 : 0;
    ttft.push_back(request.Ttft() * kMillis);
    e2el.push_back(request.EndToEnd() * kMillis);
    queue.push_back(static_cast<double>(request.queue) / kMillis);
    if (request.output_tokens > 1) tpot.push_back(request.Tpot() * kMillis);
  }
  figures.ttft = load::Describe(&ttft);
  figures.tpot = load::Describe(&tpot);
  figures.e2el = load::Describe(&e2el);
  figures.queue = load::Describe(&queue);
  return figures;
}

std::string TableOf(const SimulationResult& result, const ReportOptions& options) {
  const Figures all = MakeFigures(result, options.objectives);
  std::string text = CountsOf(all, options.objectives) + ErrorsOf(result) + TimesOf(all) +
                     MachineOf(result, options) + SharesOf(result);
  for (size_t arm = 0; arm < options.arms.size() && options.arms.size() > 1; ++arm) {
    const Figures figures = MakeFigures(result, options.objectives, static_cast<int>(arm));
    text += fmt::format("\n{}\n", options.arms[arm]) + CountsOf(figures, options.objectives) +
            TimesOf(figures);
  }
  return text +
         fmt::format("\n{:.1f} s simulated in {:.1f} s\n", all.seconds, options.wall_seconds);
}

std::string JsonOf(const SimulationResult& result, const ReportOptions& options) {
  Json json = JsonOf(MakeFigures(result, options.objectives), options.objectives);
  json["simulated"] = true;
  json["replicas"] = options.num_replicas;
  json["clipped"] = result.clipped;
  json["error_counts"] = Json::object();
  for (const auto& [reason, refusals] : result.errors)
    json["error_counts"][reason] = refusals.count;
  json["steps"] = result.totals.steps;
  json["swaps"] = result.totals.swaps;
  json["shrinks"] = result.totals.shrinks;
  json["compressed"] = result.totals.compressed;
  json["prefix_queried_tokens"] = result.totals.prefix_cache.queried_tokens;
  json["prefix_hit_tokens"] = result.totals.prefix_cache.hit_tokens;
  json["mean_page_use"] = result.mean_page_use;
  json["peak_page_use"] = result.peak_page_use;
  json["mean_running"] = result.mean_running;
  json["busy"] = result.busy;
  json["wall_seconds"] = options.wall_seconds;
  json["contended_tokens"] = result.contended_tokens;
  json["options"] = options.given;
  json["arms"] = Json::array();
  for (size_t arm = 0; arm < options.arms.size(); ++arm) {
    Json one =
        JsonOf(MakeFigures(result, options.objectives, static_cast<int>(arm)), options.objectives);
    one["name"] = options.arms[arm];
    json["arms"].push_back(std::move(one));
  }
  json["timeline"] = TimelineOf(result, options.num_replicas);
  return json.dump(2) + "\n";
}

}  // namespace hydrant::sim
