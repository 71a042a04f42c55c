#include "server/apis/status_page.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/cache/cache_plan.h"
#include "server/apis/metrics.h"
#include "server/apis/status_page_html.h"

namespace hydrant {
namespace {

using Json = nlohmann::ordered_json;

// The shortest time between two views, for any number of viewers.
constexpr TimeUs kViewInterval = 200'000;
// Without polls for this long the page is not being viewed. It polls twice a second; browsers slow
// down pages in the background.
constexpr TimeUs kViewerTimeout = 3'000'000;

const char* StateName(const SequenceView& one) {
  switch (one.phase) {
    case Phase::kReading:
      return "prefilling";
    case Phase::kResuming:
    case Phase::kRunning:
      return "running";
    case Phase::kPreempted:
      return "preempted";
    case Phase::kSwapped:
      return "swapped";
    case Phase::kWaiting:
    case Phase::kEnded:
      break;
  }
  return "waiting";
}

Json OrNull(const std::optional<int32_t>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json RequestJson(const SequenceView& one) {
  return {{"handle", one.handle},
          {"request_id", one.request_id},
          {"tenant", one.tenant},
          {"priority", one.priority},
          {"policy", one.policy},
          {"state", StateName(one)},
          {"age_ms", one.age_us / 1000},
          {"budget", OrNull(one.budget)},
          {"most_entries", OrNull(one.most_entries)},
          {"prompt_tokens", one.prompt_tokens},
          {"prompt_tokens_read", one.prompt_tokens_read},
          {"completion_tokens", one.completion_tokens},
          {"kept", one.kept},
          {"evicted", one.evicted},
          {"fullest", one.fullest},
          {"pages", one.pages},
          {"own_pages", one.own_pages},
          {"host_pages", one.host_pages},
          {"full_pages", one.full_pages},
          {"preemptions", one.preemptions},
          {"swaps", one.swaps},
          {"shrinks", one.shrinks}};
}

Json RequestsJson(const std::vector<SequenceView>& requests) {
  Json json = Json::array();
  for (const SequenceView& one : requests) json.push_back(RequestJson(one));
  return json;
}

// [end, duration, predicted duration] in microseconds, decoded sequences, prompt tokens.
Json StepsJson(const std::vector<StepTaken>& steps) {
  Json json = Json::array();
  for (const StepTaken& step : steps) {
    if (step.work.Empty()) continue;
    json.push_back({step.end, step.end - step.begin, std::llround(step.predicted_us),
                    std::llround(step.work.rows), std::llround(step.work.prompt_tokens)});
  }
  return json;
}

Json ViewJson(const ServingView& view, TimeUs now) {
  const ServingStats& stats = view.stats;
  return {{"at_us", view.at},
          {"age_ms", (now - view.at) / 1000},
          {"pool",
           {{"pages", stats.pages_total},
            {"free", stats.pages_free},
            {"shared", view.shared_pages},
            {"spared", stats.pages_spared},
            {"of_others", view.pages_of_others}}},
          {"host",
           {{"pages", view.host_pages},
            {"swapped", stats.swapped_pages},
            {"contexts", view.context_pages}}},
          {"prefix_cache",
           {{"blocks", stats.prefix_cache.blocks}, {"filled", stats.prefix_cache.filled_blocks}}},
          {"contexts", stats.contexts},
          {"running", stats.running},
          {"prefilling", stats.prefilling},
          {"waiting", stats.waiting},
          {"wait_reason", WaitReasonName(stats.wait_reason)},
          {"queued_tokens", stats.queued_tokens},
          {"totals",
           {{"steps", stats.steps},
            {"prompt_tokens", stats.prompt_tokens},
            {"generation_tokens", stats.generation_tokens},
            {"evicted_entries", view.evicted_entries},
            {"preemptions", stats.preemptions},
            {"swaps", stats.swaps},
            {"shrinks", stats.shrinks}}},
          {"live", RequestsJson(view.live)},
          {"queue", RequestsJson(view.waiting)},
          {"steps", StepsJson(view.steps)}};
}

Json ModelJson(const ServedModel& model) {
  return {{"name", model.name},
          {"engine", model.engine_description},
          {"layers", model.limits.num_layers},
          {"kv_heads", model.limits.num_kv_heads},
          {"block_size", model.limits.block_size},
          {"page_bytes", model.page_bytes},
          {"max_num_seqs", model.limits.max_num_seqs}};
}

Json NamesOfPolicies() {
  Json names = Json::array();
  for (const PolicyInfo& policy : ListPolicies()) names.push_back(policy.name);
  return names;
}

}  // namespace

std::string StatusJson(const ServingState& serving, const Health& health, const ServingView* view,
                       TimeUs now) {
  const Json json = {
      {"version", HYDRANT_VERSION},
      {"health", {{"live", health.live}, {"ready", health.ready}, {"why", health.why}}},
      {"policies", NamesOfPolicies()},
      {"model", serving.model == nullptr ? Json(nullptr) : ModelJson(*serving.model)},
      {"view", view == nullptr ? Json(nullptr) : ViewJson(*view, now)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpAnswer StatusPage::Page() const {
  return {.body = kStatusPage, .content_type = "text/html; charset=utf-8"};
}

HttpAnswer StatusPage::Status(const ServingState& serving, const Health& health, TimeUs now) {
  const bool has_no_viewer = now - requested_at_ > kViewerTimeout;
  if (has_no_viewer) view_.reset();
  if (serving.loop != nullptr && now - requested_at_ >= kViewInterval) {
    requested_at_ = now;
    std::unique_ptr<ServingView> next = serving.loop->RequestView();
    if (next != nullptr && !has_no_viewer) view_ = std::move(next);
  }
  return {.body = StatusJson(serving, health, view_.get(), now),
          .content_type = "application/json"};
}

}  // namespace hydrant
