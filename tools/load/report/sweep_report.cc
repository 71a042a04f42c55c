#include "tools/load/report/sweep_report.h"

#include <cmath>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/load/report/figures.h"
#include "tools/load/report/hit_rates.h"
#include "tools/load/report/report_page.h"

namespace hydrant::load {
namespace {

using Json = nlohmann::ordered_json;

// Options of the search and of output, without effect on a probe.
const std::set<std::string>& FreeOptions() {
  static const auto* const kFree = new std::set<std::string>{
      "--json",     "--csv",   "--html",       "--report",     "--label",
      "--resume",   "--quiet", "--resolution", "--first-rate", "--min-rate",
      "--max-rate", "--rates", "--policies",   "--budgets",    "--wait"};
  return *kFree;
}

// Settings that all probes of one file must share.
Json ProbeSettings(const SweepDescription& sweep) {
  Json settings = {
      {"model_id", sweep.model},        {"goodput", ObjectivesJson(sweep.probe.objectives)},
      {"share", sweep.probe.share},     {"warm_up_s", sweep.probe.warm_up},
      {"seconds", sweep.probe.seconds}, {"min_requests", sweep.probe.least_requests},
      {"drain_s", sweep.probe.drain},   {"burstiness", sweep.probe.burstiness},
      {"seed", sweep.probe.seed}};
  // JSON cannot represent infinity.
  if (sweep.probe.burstiness > 1e300) settings["burstiness"] = "inf";
  return settings;
}

Json OptionsOfProbes(const Json& options) {
  Json kept = Json::object();
  for (const auto& [name, value] : options.items()) {
    if (FreeOptions().count(name) == 0) kept[name] = value;
  }
  return kept;
}

Json Optional(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

// A number of a probe's record.
double Number(const Json& point, const char* key) {
  const auto found = point.find(key);
  return found != point.end() && found->is_number() ? found->get<double>() : 0.0;
}

// The record of the probe at the arm's highest met rate; null: no probe met the objectives.
Json BestOf(const SweptArm& arm) {
  Json best;
  for (const ProbeRecord& probe : arm.probes) {
    if (arm.highest_met == probe.rate) best = Json::parse(probe.figures);
  }
  return best;
}

std::string HitRateWarning(const std::vector<SweptArm>& arms) {
  std::vector<HitRate> rates;
  for (const SweptArm& arm : arms) {
    if (arm.highest_met) rates.push_back({arm.name, Number(BestOf(arm), "cache_hit_rate")});
  }
  return WarnOfHitRates(rates);
}

Json ToJson(const SweepDescription& sweep, const std::vector<SweptArm>& arms) {
  Json json = {{"kind", "sweep"},
               {"date", sweep.date},
               {"label", sweep.label.empty() ? Json() : Json(sweep.label)},
               {"backend", sweep.backend},
               {"complete", sweep.complete}};
  json.update(ProbeSettings(sweep));
  json["resolution"] = sweep.resolution;
  json["options"] = sweep.options;
  json["warning"] = HitRateWarning(arms);
  json["arms"] = Json::array();
  for (const SweptArm& arm : arms) {
    Json points = Json::array();
    for (const ProbeRecord& probe : arm.probes) points.push_back(Json::parse(probe.figures));
    json["arms"].push_back({{"name", arm.name},
                            {"finished", arm.finished},
                            {"highest_rate", Optional(arm.highest_met)},
                            {"lowest_failed", Optional(arm.lowest_failed)},
                            {"points", std::move(points)}});
  }
  return json;
}

// Sequences running on all servers, averaged over the samples between two moments.
std::optional<double> MeanBatch(const std::vector<ServerSeries>& servers, double from, double to) {
  std::optional<double> sum;
  for (const ServerSeries& server : servers) {
    double running = 0.0;
    int64_t samples = 0;
    for (const ServerSample& sample : server.samples) {
      if (sample.at < from || sample.at > to || !std::isfinite(sample.running)) continue;
      running += sample.running;
      ++samples;
    }
    if (samples > 0) sum = sum.value_or(0.0) + running / static_cast<double>(samples);
  }
  return sum;
}

absl::Status WrongSweep(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}

// Names the first setting that differs.
absl::Status CheckSame(const Json& there, const SweepDescription& sweep, const std::string& path) {
  const auto differs = [&](const std::string& name, const Json& was, const Json& is) {
    return WrongSweep(path, absl::StrCat("cannot go on: it was made with ", name, " ", was.dump(),
                                         ", not ", is.dump()));
  };
  const Json here = ProbeSettings(sweep);
  for (const auto& [name, value] : here.items()) {
    if (const Json was = there.value(name, Json()); was != value) return differs(name, was, value);
  }
  const Json was = OptionsOfProbes(there.value("options", Json::object()));
  const Json is = OptionsOfProbes(Json(sweep.options));
  for (const Json* one : {&was, &is}) {
    for (const auto& [name, value] : one->items()) {
      if (was.value(name, Json()) != is.value(name, Json()))
        return differs(name, was.value(name, Json()), is.value(name, Json()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ProbeRecord Record(const Probe& probe, const ProbeOptions& options,
                   const std::vector<ServerSeries>& servers) {
  Json figures = {{"rate", probe.rate},         {"met", probe.met},   {"seconds", probe.seconds},
                  {"requests", probe.requests}, {"good", probe.good}, {"share", probe.Share()}};
  figures.update(FiguresJson(probe.measures, true));
  // Per second of sending, not until the last answer: one long answer would lower every rate.
  figures["request_goodput"] = probe.Goodput();
  figures["output_throughput"] = probe.output_tokens_per_second;
  figures["in_flight"] = probe.in_flight;
  if (!servers.empty()) {
    const double end = options.warm_up + probe.seconds;
    figures["batch"] = Optional(MeanBatch(servers, options.warm_up, end));
    figures["server"] = ServersJson(servers);
  }
  return {probe.rate, probe.met, figures.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

std::string SweepJson(const SweepDescription& sweep, const std::vector<SweptArm>& arms) {
  return ToJson(sweep, arms).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string SweepHtml(const SweepDescription& sweep, const std::vector<SweptArm>& arms) {
  Json json = ToJson(sweep, arms);
  json["name"] = sweep.label.empty() ? sweep.model : sweep.label;
  return ReportPage(
      {{"title", sweep.label.empty() ? "hydrant-load sweep: " + sweep.model : sweep.label},
       {"sweeps", Json::array({std::move(json)})}});
}

std::string SweepCsv(const std::vector<SweptArm>& arms) {
  constexpr const char* kColumns[] = {"rate",
                                      "seconds",
                                      "requests",
                                      "good",
                                      "share",
                                      "request_goodput",
                                      "output_throughput",
                                      "in_flight",
                                      "completed",
                                      "failed",
                                      "mean_ttft_ms",
                                      "p99_ttft_ms",
                                      "mean_tpot_ms",
                                      "p99_tpot_ms",
                                      "p99_itl_ms",
                                      "p99_e2el_ms",
                                      "preemptions",
                                      "cache_hit_rate",
                                      "batch"};
  std::string csv = "arm,met";
  for (const char* column : kColumns) csv += fmt::format(",{}", column);
  csv += "\n";
  for (const SweptArm& arm : arms) {
    for (const ProbeRecord& probe : arm.probes) {
      const Json point = Json::parse(probe.figures);
      csv += fmt::format("\"{}\",{}", arm.name, probe.met ? 1 : 0);
      for (const char* column : kColumns) csv += fmt::format(",{:.6g}", Number(point, column));
      csv += "\n";
    }
  }
  return csv;
}

std::string SweepText(const SweepDescription& sweep, const std::vector<SweptArm>& arms) {
  std::string text = sweep.complete ? "" : "PARTIAL: the sweep was broken off.\n";
  text +=
      fmt::format("{}: the highest rates at which {:g} % of the requests keep {}\n", sweep.model,
                  100 * sweep.probe.share, ObjectivesJson(sweep.probe.objectives).dump());
  text += fmt::format("  {:<36} {:>10} {:>12} {:>8} {:>10} {:>10} {:>8} {:>7}\n", "requests/s",
                      "met at", "not met at", "times", "good/s", "tokens/s", "cached", "probes");
  for (const SweptArm& arm : arms) {
    const Json best = BestOf(arm);
    const auto figure = [](const std::optional<double>& value, const char* otherwise) {
      return value ? fmt::format("{:.4g}", *value) : std::string(otherwise);
    };
    std::optional<double> times;
    if (arm.highest_met && arms[0].highest_met) times = *arm.highest_met / *arms[0].highest_met;
    text +=
        fmt::format("  {:<36} {:>10} {:>12} {:>8} {:>10.4g} {:>10.4g} {:>6.1f} % {:>7}{}\n",
                    arm.name, figure(arm.highest_met, "none"), figure(arm.lowest_failed, "none"),
                    figure(times, "-"), Number(best, "request_goodput"),
                    Number(best, "output_throughput"), 100 * Number(best, "cache_hit_rate"),
                    arm.probes.size(), arm.finished ? "" : "  unfinished");
  }
  if (const std::string warning = HitRateWarning(arms); !warning.empty())
    text += fmt::format("WARNING: {}\n", warning);
  return text;
}

absl::StatusOr<std::vector<SweptArm>> ParseSweep(std::string_view text, const std::string& path,
                                                 const SweepDescription& sweep) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("kind", Json()) != "sweep" || !json.contains("arms") ||
      !json["arms"].is_array())
    return WrongSweep(path, "it is no sweep");
  HYDRANT_RETURN_IF_ERROR(CheckSame(json, sweep, path));
  std::vector<SweptArm> arms;
  for (const Json& arm : json["arms"]) {
    if (!arm.is_object() || !arm.value("name", Json()).is_string() ||
        !arm.value("points", Json()).is_array())
      return WrongSweep(path, "arms: each has a name and points");
    SweptArm swept{.name = arm["name"].get<std::string>()};
    for (const Json& point : arm["points"]) {
      if (!point.is_object() || !point.value("rate", Json()).is_number() ||
          !point.value("met", Json()).is_boolean())
        return WrongSweep(path, "points: each has a rate, and whether it was met");
      swept.probes.push_back({point["rate"].get<double>(), point["met"].get<bool>(), point.dump()});
    }
    arms.push_back(std::move(swept));
  }
  return arms;
}

}  // namespace hydrant::load
