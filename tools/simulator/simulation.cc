#include "tools/simulator/simulation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <queue>
#include <set>
#include <utility>

#include "fmt/format.h"
#include "kernels/ops/prefix_blocks.h"
#include "kernels/status_macros.h"
#include "scheduler/request_check.h"
#include "tools/simulator/balancer.h"

namespace hydrant::sim {
namespace {

constexpr int kMaxReplicas = 100'000;
constexpr double kMaxSeconds = 1e9;

class Cluster {
 public:
  Cluster(const SimulationOptions& options, const load::Workload& workload,
          std::unique_ptr<Balancer> balancer);

  absl::Status Run(const std::function<double(int64_t)>& due, const ProgressCallback& progress);
  SimulationResult Finish();

 private:
  struct Node {
    std::unique_ptr<Replica> replica;
    // The state has been constant since then.
    TimeUs since = 0;
    int running = 0, waiting = 0;
    int64_t pages = 0;
    TimeUs busy = 0;
    std::vector<int64_t> waiting_of;  // [tenants] requests without a token yet
  };
  using StepEnd = std::pair<TimeUs, int>;  // time and replica

  void Send(int64_t index, TimeUs now);
  Request MakeRequest(int64_t index, load::PlannedRequest planned);
  void Clip(load::PlannedRequest* planned);
  void Advance();
  void Look(int node, TimeUs now);
  void Hear(int node, TimeUs now);
  void HearTokens(Node* node, SimulatedRequest* request, int32_t tokens, TimeUs now);
  void Refuse(const Failed& failed);
  bool HasBacklogs(const Node& node) const;
  void End(const Event& event, const Usage& usage);
  SimulatedRequest& RequestOf(RequestHandle handle) { return result_.requests[handle - 1]; }

  const SimulationOptions& options_;
  const load::Workload& workload_;
  const std::unique_ptr<Balancer> balancer_;  // null: a single replica
  std::vector<Node> nodes_;
  std::vector<OutstandingTokens> loads_;
  std::priority_queue<StepEnd, std::vector<StepEnd>, std::greater<>> step_ends_;
  std::vector<int> tenant_of_;        // [arms]
  std::vector<std::string> tenants_;  // names
  std::vector<int64_t> contended_;    // [tenants]
  std::vector<int32_t> max_tokens_;   // [requests]
  int64_t ended_ = 0;
  SimulationResult result_;
};

Cluster::Cluster(const SimulationOptions& options, const load::Workload& workload,
                 std::unique_ptr<Balancer> balancer)
    : options_(options),
      workload_(workload),
      balancer_(std::move(balancer)),
      nodes_(options.num_replicas),
      loads_(options.num_replicas) {
  for (const Arm& arm : options.mix) {
    const std::string& tenant = arm.request.tenant;
    const auto found = std::find(tenants_.begin(), tenants_.end(), tenant);
    tenant_of_.push_back(static_cast<int>(found - tenants_.begin()));
    if (found == tenants_.end()) tenants_.push_back(tenant);
  }
  contended_.resize(tenants_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].replica = std::make_unique<Replica>(options.replica, options.seed + 2 * i);
    nodes_[i].waiting_of.resize(tenants_.size());
  }
  result_.requests.reserve(workload.size());
  max_tokens_.reserve(workload.size());
}

absl::Status Cluster::Run(const std::function<double(int64_t)>& due,
                          const ProgressCallback& progress) {
  constexpr int64_t kOften = 256;
  TimeUs now = 0;
  for (int64_t index = 0; index < workload_.size(); ++index) {
    const double seconds = due(index);
    if (!(seconds >= 0 && seconds <= kMaxSeconds)) {
      return absl::InvalidArgumentError(
          fmt::format("request-rate: request {} would come after {} s; at most {}", index, seconds,
                      kMaxSeconds));
    }
    now = std::max(now, static_cast<TimeUs>(std::llround(seconds * 1e6)));
    while (!step_ends_.empty() && step_ends_.top().first < now) Advance();
    Send(index, now);
    if (progress != nullptr && index % kOften == 0) progress(index + 1, ended_, now);
  }
  for (int64_t steps = 0; !step_ends_.empty(); ++steps) {
    const TimeUs at = step_ends_.top().first;
    Advance();
    if (progress != nullptr && steps % kOften == 0) progress(workload_.size(), ended_, at);
  }
  return absl::OkStatus();
}

void Cluster::Clip(load::PlannedRequest* planned) {
  const int64_t most = options_.replica.limits.engine.max_model_len;
  const auto prompt = static_cast<int64_t>(planned->prompt.size());
  if (prompt + planned->max_tokens <= most) return;
  ++result_.clipped;
  planned->max_tokens = std::min(planned->max_tokens, std::max(most / 2, most - prompt));
  planned->prompt.resize(std::min(prompt, most - planned->max_tokens));
}

Request Cluster::MakeRequest(int64_t index, load::PlannedRequest planned) {
  if (options_.clip_lengths) Clip(&planned);
  result_.requests.push_back(
      {.arm = planned.arm, .input_tokens = static_cast<int32_t>(planned.prompt.size())});
  max_tokens_.push_back(static_cast<int32_t>(planned.max_tokens));
  Request request = options_.mix[planned.arm].request;
  request.request_id = fmt::format("{}", index);
  request.prompt = std::move(planned.prompt);
  request.sampling.seed = planned.seed;
  request.stopping.max_tokens = planned.max_tokens;
  request.stopping.ignore_eos = true;
  return request;
}

void Cluster::Send(int64_t index, TimeUs now) {
  Request request = MakeRequest(index, workload_.Make(index));
  SimulatedRequest& simulated = result_.requests.back();
  const int to = balancer_ == nullptr ? 0 : balancer_->Pick(loads_, request.prompt);
  Node& node = nodes_[to];
  simulated.arrived = now;
  simulated.replica = to;
  result_.timeline.Add(now, {.arrived = 1});
  const bool was_idle = !node.replica->NextAt().has_value();
  if (const auto failed = node.replica->Submit(index + 1, std::move(request), now)) {
    Refuse(*failed);
    ++ended_;
    return;
  }
  loads_[to] += simulated.input_tokens + max_tokens_.back();
  ++node.waiting_of[tenant_of_[simulated.arm]];
  if (!was_idle) return;
  Look(to, now);
  Hear(to, now);
  if (const auto at = node.replica->NextAt()) step_ends_.emplace(*at, to);
}

void Cluster::Advance() {
  const auto [now, index] = step_ends_.top();
  step_ends_.pop();
  Node& node = nodes_[index];
  node.replica->Advance();
  node.busy += now - node.since;
  Look(index, now);
  Hear(index, now);
  result_.end = std::max(result_.end, now);
  if (const auto at = node.replica->NextAt()) step_ends_.emplace(*at, index);
}

// Integrates the state until now, then samples the new state.
void Cluster::Look(int index, TimeUs now) {
  Node& node = nodes_[index];
  const auto passed = static_cast<double>(now - node.since);
  result_.timeline.Add(now, {.running = node.running * passed,
                             .waiting = node.waiting * passed,
                             .pages = static_cast<double>(node.pages) * passed});
  const ServingStats stats = node.replica->Stats();
  node.since = now;
  node.running = stats.running + stats.prefilling;
  node.waiting = stats.waiting;
  node.pages = stats.pages_total - stats.pages_free;
  result_.peak_page_use =
      std::max(result_.peak_page_use,
               static_cast<double>(node.pages) / static_cast<double>(stats.pages_total));
}

void Cluster::Hear(int index, TimeUs now) {
  Node& node = nodes_[index];
  for (const Event& event : node.replica->TakeEvents()) {
    if (const auto* delta = std::get_if<Delta>(&event.what)) {
      HearTokens(&node, &RequestOf(event.handle), delta->token_id.has_value() ? 1 : 0, now);
    } else if (const auto* finished = std::get_if<Finished>(&event.what)) {
      RequestOf(event.handle).completed = true;
      End(event, finished->usage);
    } else if (const auto* failed = std::get_if<Failed>(&event.what)) {
      Refuse(*failed);
      End(event, failed->usage);
    }
  }
}

// True if every tenant has a backlog: then no tenant's share is limited by its demand.
bool Cluster::HasBacklogs(const Node& node) const {
  const int64_t backlog = options_.replica.limits.engine.max_num_seqs;
  return std::all_of(node.waiting_of.begin(), node.waiting_of.end(),
                     [&](int64_t waiting) { return waiting >= backlog; });
}

void Cluster::HearTokens(Node* node, SimulatedRequest* request, int32_t tokens, TimeUs now) {
  const int tenant = tenant_of_[request->arm];
  if (tenants_.size() > 1 && HasBacklogs(*node))
    contended_[tenant] += tokens + (request->first_token < 0 ? request->input_tokens : 0);
  if (request->first_token < 0) {
    request->first_token = now;
    --node->waiting_of[tenant];
  } else {
    request->longest_gap = std::max(request->longest_gap, now - request->last_token);
  }
  request->last_token = now;
  request->output_tokens += tokens;
  result_.timeline.Add(now, {.output_tokens = tokens});
}

void Cluster::Refuse(const Failed& failed) {
  Refusals& refusals = result_.errors[failed.reason];
  if (refusals.count++ == 0) refusals.example = std::string(failed.status.message());
}

void Cluster::End(const Event& event, const Usage& usage) {
  SimulatedRequest& request = RequestOf(event.handle);
  Node& node = nodes_[request.replica];
  if (request.first_token < 0) --node.waiting_of[tenant_of_[request.arm]];
  loads_[request.replica] -= request.input_tokens + max_tokens_[event.handle - 1];
  request.queue = usage.queue_us;
  request.cached_tokens = usage.cached_tokens;
  request.preemptions = usage.preemptions;
  result_.timeline.Add(node.since, {.ended = 1});
  ++ended_;
}

SimulationResult Cluster::Finish() {
  double busy = 0, pages = 0, running = 0;
  for (const Node& node : nodes_) {
    const ServingStats stats = node.replica->Stats();
    ServingStats& totals = result_.totals;
    totals.pages_total += stats.pages_total;
    totals.steps += stats.steps;
    totals.preemptions += stats.preemptions;
    totals.shrinks += stats.shrinks;
    totals.compressed += stats.compressed;
    totals.swaps += stats.swaps;
    totals.prompt_tokens += stats.prompt_tokens;
    totals.generation_tokens += stats.generation_tokens;
    totals.prefix_cache.queried_tokens += stats.prefix_cache.queried_tokens;
    totals.prefix_cache.hit_tokens += stats.prefix_cache.hit_tokens;
    totals.prefix_cache.evicted_blocks += stats.prefix_cache.evicted_blocks;
    busy += static_cast<double>(node.busy);
  }
  for (const Timeline::Window& window : result_.timeline.windows()) {
    pages += window.pages;
    running += window.running;
  }
  const double time = std::max<double>(1, static_cast<double>(result_.end));
  result_.busy = busy / time / static_cast<double>(nodes_.size());
  result_.mean_page_use = pages / time / static_cast<double>(result_.totals.pages_total);
  result_.mean_running = running / time / static_cast<double>(nodes_.size());
  for (size_t i = 0; i < tenants_.size() && tenants_.size() > 1; ++i)
    result_.contended_tokens[tenants_[i]] = contended_[i];
  return std::move(result_);
}

absl::Status Check(const SimulationOptions& options) {
  if (options.num_replicas < 1 || options.num_replicas > kMaxReplicas) {
    return absl::InvalidArgumentError(
        fmt::format("replicas: {} is outside [1, {}]", options.num_replicas, kMaxReplicas));
  }
  if (options.mix.empty()) return absl::InvalidArgumentError("mix: it is empty");
  HYDRANT_RETURN_IF_ERROR(CheckPolicyUnderPressure(options.replica.scheduler.policy_under_pressure,
                                                   options.replica.limits.engine));
  return ValidateOptions(options.replica.scheduler);
}

// Capacity of a replica's prefix cache in tokens.
int64_t KnownTokens(const EngineLimits& limits) {
  return int64_t{limits.num_prefix_blocks} * kPrefixBlockTokens;
}

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const SimulationOptions& options,
                                          const load::Workload& workload,
                                          const std::function<double(int64_t index)>& due,
                                          const ProgressCallback& progress) {
  HYDRANT_RETURN_IF_ERROR(Check(options));
  HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<Balancer> balancer,
                           MakeBalancer(options.balancer, options.num_replicas,
                                        KnownTokens(options.replica.limits.engine), options.seed));
  if (options.num_replicas == 1) balancer.reset();
  Cluster cluster(options, workload, std::move(balancer));
  HYDRANT_RETURN_IF_ERROR(cluster.Run(due, progress));
  return cluster.Finish();
}

}  // namespace hydrant::sim
