#include "tools/load/report/figures.h"

#include <cmath>
#include <functional>
#include <set>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace hydrant::load {
namespace {

using Json = nlohmann::ordered_json;

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

// JSON has no NaN.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// Limits the size of a page with many windows.
Json Rounded(double value) { return std::round(value * 1e3) / 1e3; }

Json QuantileColumns(const Timeline& timeline, Distribution Window::*times) {
  Json columns = {{"p50", Json::array()},
                  {"p90", Json::array()},
                  {"p99", Json::array()},
                  {"max", Json::array()}};
  for (const Window& window : timeline.windows) {
    const Distribution& of = window.*times;
    const auto add = [&](const char* name, double value) {
      columns[name].push_back(of.count > 0 ? Rounded(value) : Json());
    };
    add("p50", of.p50);
    add("p90", of.p90);
    add("p99", of.p99);
    add("max", of.max);
  }
  return columns;
}

}  // namespace

Json FiguresJson(const Measures& measures, bool has_objectives) {
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
  AddTimes("ttft_hit", measures.ttft_hit, &figures);
  AddTimes("ttft_miss", measures.ttft_miss, &figures);
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
  figures["kv_bytes"] = measures.kv_bytes;
  figures["kv_bytes_of_full"] = measures.kv_bytes_of_full;
  figures["preemptions"] = measures.preemptions;
  figures["cached_tokens"] = measures.cached_tokens;
  figures["cache_hits"] = measures.hits;
  figures["cache_hit_rate"] = measures.CacheHitRate();
  return figures;
}

Json TimelineJson(const Timeline& timeline, bool has_objectives) {
  Json json = {{"step_s", timeline.step}};
  const auto column = [&](const char* name, const std::function<double(const Window&)>& value) {
    Json values = Json::array();
    for (const Window& window : timeline.windows) values.push_back(Rounded(value(window)));
    json[name] = std::move(values);
  };
  const auto rate = [&](const char* name, int64_t Window::*count) {
    column(name, [count](const Window& window) {
      return window.seconds > 0.0 ? static_cast<double>(window.*count) / window.seconds : 0.0;
    });
  };
  rate("due_per_s", &Window::due);
  rate("completed_per_s", &Window::completed);
  if (has_objectives) rate("good_per_s", &Window::good);
  rate("output_tokens_per_s", &Window::output_tokens);
  column("in_flight", [](const Window& window) { return window.in_flight; });
  json["ttft_ms"] = QuantileColumns(timeline, &Window::ttft);
  json["itl_ms"] = QuantileColumns(timeline, &Window::itl);
  json["e2el_ms"] = QuantileColumns(timeline, &Window::e2el);
  std::set<std::string> errors;
  for (const Window& window : timeline.windows) {
    for (const auto& [error, count] : window.errors) errors.insert(error);
  }
  json["errors"] = Json::array();
  for (const std::string& error : errors) {
    Json counts = Json::array();
    for (const Window& window : timeline.windows) {
      const auto found = window.errors.find(error);
      counts.push_back(found == window.errors.end() ? 0 : found->second);
    }
    json["errors"].push_back({{"name", error}, {"counts", std::move(counts)}});
  }
  return json;
}

Json ServersJson(const std::vector<ServerSeries>& servers) {
  Json all = Json::array();
  for (const ServerSeries& server : servers) {
    Json samples = Json::array();
    for (const ServerSample& sample : server.samples)
      samples.push_back({{"at_s", sample.at},
                         {"running", Number(sample.running)},
                         {"waiting", Number(sample.waiting)},
                         {"pages_free", Number(sample.pages_free)},
                         {"pages_total", Number(sample.pages_total)},
                         {"cache_usage", Number(sample.cache_usage)}});
    Json counters = Json::object();
    for (const auto& [name, grown] : server.counters) counters[name] = Number(grown);
    all.push_back({{"name", server.url},
                   {"samples", std::move(samples)},
                   {"counters", std::move(counters)},
                   {"failed_scrapes", server.failed},
                   {"error", server.error}});
  }
  return all;
}

Json ObjectivesJson(const Objectives& objectives) {
  Json json = Json::object();
  const auto add = [&](const char* name, const std::optional<double>& limit) {
    if (limit) json[name] = *limit;
  };
  add("ttft", objectives.ttft_ms);
  add("tpot", objectives.tpot_ms);
  add("itl", objectives.itl_ms);
  add("e2el", objectives.e2el_ms);
  return json;
}

}  // namespace hydrant::load
