#include "server/apis/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include "server/wire/status_details.h"

namespace hydrant {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr double kMicros = 1e-6;

// The metric families of one scrape, with labels common to all series.
class Families {
 public:
  explicit Families(Labels common = {}) : common_(std::move(common)) {}

  // Begins a family; the following values belong to it.
  Families& Begin(MetricType type, std::string name, std::string help) {
    families_.push_back({std::move(name), std::move(help), type, {}});
    return *this;
  }
  Families& Gauge(std::string name, std::string help) {
    return Begin(MetricType::Gauge, std::move(name), std::move(help));
  }
  Families& Counter(std::string name, std::string help) {
    return Begin(MetricType::Counter, std::move(name), std::move(help));
  }

  template <typename Number>
  Families& Value(Number value, const Labels& labels = {}) {
    ClientMetric& metric = Add(labels);
    metric.gauge.value = metric.counter.value = static_cast<double>(value);
    return *this;
  }
  Families& Values(const std::string& label, const LabelledCounter& counter) {
    for (const std::string& value : counter.values()) Value(counter.Count(value), {{label, value}});
    return *this;
  }

  Families& Distribution(std::string name, std::string help, const Histogram& histogram) {
    Begin(MetricType::Histogram, std::move(name), std::move(help));
    const Histogram::Reading reading = histogram.Read();
    ClientMetric::Histogram& to = Add({}).histogram;
    for (size_t i = 0; i <= reading.num_bounds; ++i) {
      to.sample_count += reading.counts[i];
      if (i < reading.num_bounds) to.bucket.push_back({to.sample_count, reading.bounds[i]});
    }
    to.bucket.push_back({to.sample_count, std::numeric_limits<double>::infinity()});
    to.sample_sum = reading.sum;
    return *this;
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  ClientMetric& Add(const Labels& labels) {
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = common_;
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    return metric;
  }

  const Labels common_;
  std::vector<MetricFamily> families_;
};

double ResidentBytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * kMicros;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void AddProcess(const MetricsArgs& args, Families* to) {
  to->Gauge("process_start_time_seconds", "When the process began, in seconds since 1970.")
      .Value(std::chrono::duration<double>(args.started_at.time_since_epoch()).count());
  to->Counter("process_cpu_seconds_total", "Processor time, of user and system.")
      .Value(CpuSeconds());
  to->Gauge("process_resident_memory_bytes", "Memory that lies in RAM.").Value(ResidentBytes());
}

void AddDaemon(const MetricsArgs& args, Families* to) {
  const v1::ServerState state = args.serving.state;
  to->Gauge("hydrant_build_info", "1; the labels say what runs.")
      .Value(1, {{"version", args.version}});
  to->Gauge("hydrant_state", "1 for the state that the daemon is in, 0 for the others.")
      .Value(state == v1::SERVER_STATE_LOADING, {{"state", "loading"}})
      .Value(state == v1::SERVER_STATE_READY, {{"state", "ready"}})
      .Value(state == v1::SERVER_STATE_DRAINING, {{"state", "draining"}})
      .Value(state == v1::SERVER_STATE_ENGINE_LOST, {{"state", "engine_lost"}});
  to->Gauge("hydrant_ready", "1 where /readyz says 200.").Value(args.health.ready);
}

void AddRequests(const RequestMetrics& requests, Families* to) {
  to->Counter("hydrant_requests_total", "Accepted requests that have ended, by how.")
      .Values("outcome", requests.ended);
  to->Counter("hydrant_requests_refused_total", "Requests that were refused, by reason.")
      .Values("reason", requests.refused);
  to->Counter("hydrant_request_prompt_tokens_total",
              "Prompt tokens of the requests that have ended, by how.")
      .Values("outcome", requests.prompt_tokens);
  to->Counter("hydrant_request_generation_tokens_total",
              "Generated tokens of the requests that have ended, by how.")
      .Values("outcome", requests.generation_tokens);
  to->Counter("hydrant_evicted_entries_total",
              "Entries that a KV head had evicted when its request ended, by cache policy.")
      .Values("policy", requests.evicted);
  to->Counter("hydrant_kept_entries_total",
              "Entries that a KV head held when its request ended, by cache policy.")
      .Values("policy", requests.kept);
  to->Counter("hydrant_recalled_tokens_total",
              "Prompt tokens of ended requests that repeat passages of their contexts.")
      .Value(requests.recalled_tokens.load());
  to->Counter("hydrant_sent_bytes_total", "Bytes of messages handed to gRPC.")
      .Value(requests.sent_bytes.load());
}

void AddAuthorizer(const AuthorizerMetrics& authorizer, Families* to) {
  to->Counter("hydrant_calls_refused_total",
              "Calls that ended by the rule of their method, before anything was read, by status.")
      .Value(authorizer.unauthenticated.load(), {{"code", "UNAUTHENTICATED"}})
      .Value(authorizer.permission_denied.load(), {{"code", "PERMISSION_DENIED"}})
      .Value(authorizer.unimplemented.load(), {{"code", "UNIMPLEMENTED"}});
}

void AddConnections(const ConnectionGuardMetrics& connections, Families* to) {
  to->Counter("hydrant_connections_ended_total",
              "Connections that were ended because they broke a rule, by rule.");
  for (int rule = 0; rule < kNumConnectionRules; ++rule)
    to->Value(connections.ended[rule].load(),
              {{"rule", ConnectionRuleName(static_cast<ConnectionRule>(rule))}});
}

void AddSpans(const SpanExporterMetrics& spans, Families* to) {
  to->Counter("hydrant_trace_spans_exported_total", "Spans that a collector has taken.")
      .Value(spans.exported.load());
  to->Counter("hydrant_trace_spans_dropped_total",
              "Spans that found no room to wait in, or that no collector took in time.")
      .Value(spans.dropped.load());
}

// The circuit breakers of the external services.
void AddCircuits(const MetricsArgs& args, Families* to) {
  const ServingState& serving = args.serving;
  const std::pair<const char*, const Circuit*> circuits[] = {
      {"context_store", serving.contexts == nullptr ? nullptr : serving.contexts->circuit()},
      {"prefix_cache_store", serving.prefixes == nullptr ? nullptr : &serving.prefixes->circuit()},
      {"trace_collector", args.collector}};
  to->Gauge("hydrant_circuit_open", "1 where it is left alone because it did not answer.");
  for (const auto& [name, circuit] : circuits)
    to->Value(circuit != nullptr && circuit->is_open(), {{"to", name}});
  to->Counter("hydrant_circuit_openings_total", "How often it was found not to answer.");
  for (const auto& [name, circuit] : circuits)
    to->Value(circuit == nullptr ? 0 : circuit->openings(), {{"to", name}});
}

void AddTenants(const Tenants& tenants, Families* to) {
  const std::vector<Tenants::Reading> readings = tenants.Read();
  const auto each = [&](auto value) {
    for (const auto& [tenant, use] : readings) to->Value(value(use), {{"tenant", tenant}});
  };
  to->Gauge("hydrant_tenant_live_requests", "Requests of a tenant that have not ended.");
  each([](const TenantUse& use) { return use.running; });
  to->Counter("hydrant_tenant_requests_total", "Requests of a tenant that its quotas let in.");
  each([](const TenantUse& use) { return use.requests; });
  to->Counter("hydrant_tenant_requests_refused_total", "Those that its quotas did not.");
  each([](const TenantUse& use) { return use.refused; });
  to->Counter("hydrant_tenant_prompt_tokens_total", "Prompt tokens of those that have ended.");
  each([](const TenantUse& use) { return use.prompt_tokens; });
  to->Counter("hydrant_tenant_generation_tokens_total",
              "Generated tokens of those that have ended.");
  each([](const TenantUse& use) { return use.generation_tokens; });
  to->Counter("hydrant_tenant_page_seconds_total",
              "Pages that they held, times how long they held them.");
  each([](const TenantUse& use) { return use.page_seconds; });
}

void AddModel(const ServedModel& model, Families* to) {
  to->Gauge("hydrant_model_info", "1; the labels say which model is served, and with what.")
      .Value(1, {{"model_name", ToValidUtf8(model.name)},
                 {"architecture", ToValidUtf8(model.config.architecture)},
                 {"engine", model.engine_description},
                 {"block_size", std::to_string(model.limits.block_size)},
                 {"max_model_len", std::to_string(model.limits.max_model_len)},
                 {"max_num_seqs", std::to_string(model.limits.max_num_seqs)}});
  to->Gauge("hydrant_page_bytes", "Size of a page: block_size entries of one KV head of a layer.")
      .Value(model.page_bytes);
  to->Gauge("hydrant_engine_memory_bytes",
            "What the engine may hold, by what it is for; reserved from the start.")
      .Value(model.memory.weights, {{"part", "weights"}})
      .Value(model.memory.kv_pool, {{"part", "kv_pool"}})
      .Value(model.memory.workspace, {{"part", "workspace"}})
      .Value(model.memory.prefix_cache, {{"part", "prefix_cache"}})
      .Value(model.memory.offloaded_caches, {{"part", "contexts"}})
      .Value(model.memory.swap_space, {{"part", "swap_space"}});
}

void AddWaiting(const ServingStats& loop, Families* to) {
  to->Gauge("hydrant_waiting_requests",
            "Requests that wait, by what the one at the front of the queue lacks.");
  for (int i = 0; i < kNumWaitReasons; ++i) {
    const auto reason = static_cast<WaitReason>(i);
    to->Value(reason == loop.wait_reason ? loop.waiting : 0, {{"reason", WaitReasonName(reason)}});
  }
}

void AddPrefixCache(const PrefixCacheStats& cache, Families* to) {
  to->Counter("hydrant_prefix_cache_queried_tokens_total",
              "Tokens of prompts that were looked for in the prefix cache.")
      .Value(cache.queried_tokens);
  to->Counter("hydrant_prefix_cache_hit_tokens_total",
              "Of these, tokens that were there and need not be read.")
      .Value(cache.hit_tokens);
  to->Counter("hydrant_prefix_cache_evicted_blocks_total",
              "Blocks that left the prefix cache because their room was wanted.")
      .Value(cache.evicted_blocks);
  to->Gauge("hydrant_prefix_cache_blocks", "Blocks of the prefix cache, by state.")
      .Value(cache.filled_blocks, {{"state", "filled"}})
      .Value(cache.blocks - cache.filled_blocks, {{"state", "free"}});
}

void AddLoop(const ServingStats& loop, const StepHistograms& metrics, TimeUs now, Families* to) {
  to->Gauge("hydrant_pages_total", "Pages of the KV pool.").Value(loop.pages_total);
  to->Gauge("hydrant_pages", "Pages of the KV pool, by state.")
      .Value(loop.pages_free, {{"state", "free"}})
      .Value(loop.pages_total - loop.pages_free, {{"state", "used"}});
  to->Gauge("hydrant_pages_spared", "Pages more that would be used if sequences shared none.")
      .Value(loop.pages_spared);
  to->Gauge("hydrant_state_pages", "Used pages that hold scores of the entries in others.")
      .Value(loop.state_pages);
  to->Gauge("hydrant_live_requests", "Accepted requests that have not ended, by state.")
      .Value(loop.running, {{"state", "running"}})
      .Value(loop.prefilling, {{"state", "prefilling"}})
      .Value(loop.waiting, {{"state", "waiting"}});
  AddWaiting(loop, to);
  to->Gauge("hydrant_longest_wait_seconds",
            "How long the request that waits longest has waited to be begun; 0 where none does.")
      .Value(static_cast<double>(loop.longest_wait_us) * kMicros);
  to->Gauge("hydrant_queued_tokens", "Known tokens of the requests that wait.")
      .Value(loop.queued_tokens);
  const TimeUs due = loop.step_due_since == 0 ? 0 : now - loop.step_due_since;
  to->Gauge("hydrant_step_due_seconds",
            "How long ago the last step ended, or the first request came after it; 0 without work.")
      .Value(static_cast<double>(due) * kMicros);
  to->Counter("hydrant_steps_total", "Steps of the engine.").Value(loop.steps);
  to->Counter("hydrant_preemptions_total", "Sequences that gave their pages up and read again.")
      .Value(loop.preemptions);
  to->Counter("hydrant_swaps_total", "Sequences whose caches left for the host's memory.")
      .Value(loop.swaps);
  to->Gauge("hydrant_swapped_pages", "Pages of these that are there.").Value(loop.swapped_pages);
  to->Counter("hydrant_shrinks_total", "Caches that were cut because others needed the room.")
      .Value(loop.shrinks);
  to->Counter("hydrant_compressed_requests_total",
              "Requests for the full cache that were admitted by --policy-under-pressure instead.")
      .Value(loop.compressed);
  AddPrefixCache(loop.prefix_cache, to);
  to->Gauge("hydrant_contexts", "Caches that are kept of requests that have ended.")
      .Value(loop.contexts);
  to->Counter("hydrant_contexts_evicted_total", "Kept caches that left because others wanted room.")
      .Value(loop.contexts_evicted);
  to->Counter("hydrant_prompt_tokens_total",
              "Prompt tokens that were read or found in the prefix cache, each prompt once.")
      .Value(loop.prompt_tokens);
  to->Counter("hydrant_generation_tokens_total", "Tokens that were sampled and used.")
      .Value(loop.generation_tokens);
  to->Counter("hydrant_host_seconds_total",
              "Time of the loop in which no device was waited for: scheduling and delivery; on a "
              "CPU also the computing.")
      .Value(static_cast<double>(loop.host_us) * kMicros);
  to->Distribution("hydrant_step_seconds", "Time of a step.", metrics.step_seconds);
  to->Distribution("hydrant_batch_sequences", "Sequences in a step.", metrics.batch_sequences);
  to->Distribution("hydrant_batch_tokens", "Tokens in a step, prompt and decoded.",
                   metrics.batch_tokens);
}

void AddContextStore(const ContextArchiveMetrics& metrics, Families* to) {
  to->Distribution("hydrant_context_save_seconds", "Time in which a context was saved.",
                   metrics.save_seconds);
  to->Distribution("hydrant_context_load_seconds", "Time in which a context came from the store.",
                   metrics.load_seconds);
  to->Counter("hydrant_context_store_bytes_total", "Bytes to and from the store of contexts.")
      .Value(metrics.saved_bytes.load(), {{"direction", "saved"}})
      .Value(metrics.loaded_bytes.load(), {{"direction", "loaded"}});
  to->Counter("hydrant_context_store_failures_total",
              "Contexts that could not be saved, or not be loaded though they were there.")
      .Value(metrics.failed_saves.load(), {{"direction", "saved"}})
      .Value(metrics.failed_loads.load(), {{"direction", "loaded"}});
}

void AddPrefixStore(const PrefixArchiveMetrics& metrics, Families* to) {
  to->Distribution("hydrant_prefix_store_load_seconds",
                   "Time in which what was saved of a prompt came from the store.",
                   metrics.load_seconds);
  to->Counter("hydrant_prefix_store_tokens_total",
              "Prompt tokens that need not be read for what came from the store.")
      .Value(metrics.loaded_tokens.load());
  to->Counter("hydrant_prefix_store_bytes_total", "Bytes to and from the store of prefix blocks.")
      .Value(metrics.saved_bytes.load(), {{"direction", "saved"}})
      .Value(metrics.loaded_bytes.load(), {{"direction", "loaded"}});
  to->Counter("hydrant_prefix_store_failures_total",
              "Prefix blocks that could not be saved, or not be loaded though they were there.")
      .Value(metrics.failed_saves.load(), {{"direction", "saved"}})
      .Value(metrics.failed_loads.load(), {{"direction", "loaded"}});
}

void AddTimes(const RequestMetrics& requests, Families* to) {
  to->Distribution("hydrant_time_to_first_token_seconds", "From the call to its first token.",
                   requests.time_to_first_token);
  to->Distribution("hydrant_inter_token_latency_seconds", "Between two tokens of a request.",
                   requests.inter_token_latency);
  to->Distribution("hydrant_e2e_request_latency_seconds",
                   "From the call to its end, of finished requests.", requests.end_to_end);
  to->Distribution("hydrant_request_queue_time_seconds",
                   "From submission to the first work on the prompt, of finished requests.",
                   requests.queue_time);
  to->Distribution("hydrant_request_prefill_time_seconds",
                   "From the first work on the prompt to the first token, of finished requests.",
                   requests.prefill_time);
  to->Distribution("hydrant_request_decode_time_seconds",
                   "From the first token to the end, of finished requests.", requests.decode_time);
}

void AddVllmLoop(const ServedModel& model, const ServingStats& loop, const StepHistograms& metrics,
                 Families* to) {
  const int64_t heads = int64_t{model.limits.num_layers} * model.limits.num_kv_heads;
  const auto pages = static_cast<double>(loop.pages_total);
  to->Gauge("vllm:num_requests_running", "As hydrant_live_requests, running and prefilling.")
      .Value(loop.running + loop.prefilling);
  to->Gauge("vllm:num_requests_waiting", "As hydrant_live_requests, waiting.").Value(loop.waiting);
  to->Gauge("vllm:kv_cache_usage_perc", "Used pages over all pages, 0 to 1.")
      .Value(static_cast<double>(loop.pages_total - loop.pages_free) / pages);
  to->Gauge("vllm:cache_config_info", "1; block_size and num_gpu_blocks in blocks of whole tokens.")
      .Value(1, {{"block_size", std::to_string(model.limits.block_size)},
                 {"num_gpu_blocks", std::to_string(loop.pages_total / heads)}});
  to->Counter("vllm:num_preemptions_total", "As hydrant_preemptions_total.")
      .Value(loop.preemptions);
  to->Counter("vllm:prefix_cache_queries_total", "As hydrant_prefix_cache_queried_tokens_total.")
      .Value(loop.prefix_cache.queried_tokens);
  to->Counter("vllm:prefix_cache_hits_total", "As hydrant_prefix_cache_hit_tokens_total.")
      .Value(loop.prefix_cache.hit_tokens);
  to->Counter("vllm:prompt_tokens_total", "As hydrant_prompt_tokens_total.")
      .Value(loop.prompt_tokens);
  to->Counter("vllm:generation_tokens_total", "As hydrant_generation_tokens_total.")
      .Value(loop.generation_tokens);
  to->Distribution("vllm:iteration_tokens_total", "As hydrant_batch_tokens.", metrics.batch_tokens);
}

void AddVllmRequests(const RequestMetrics& requests, Families* to) {
  const auto ended = [&](const char* outcome) { return requests.ended.Count(outcome); };
  to->Counter("vllm:request_success_total", "As hydrant_requests_total, in vLLM's words.")
      .Value(ended("stop"), {{"finished_reason", "stop"}})
      .Value(ended("length"), {{"finished_reason", "length"}})
      .Value(ended("cancelled") + ended("deadline") + ended("slow_reader") + ended("overloaded") +
                 ended("draining"),
             {{"finished_reason", "abort"}})
      .Value(ended("error"), {{"finished_reason", "error"}});
  to->Distribution("vllm:time_to_first_token_seconds", "As hydrant_time_to_first_token_seconds.",
                   requests.time_to_first_token);
  to->Distribution("vllm:inter_token_latency_seconds", "As hydrant_inter_token_latency_seconds.",
                   requests.inter_token_latency);
  to->Distribution("vllm:e2e_request_latency_seconds", "As hydrant_e2e_request_latency_seconds.",
                   requests.end_to_end);
  to->Distribution("vllm:request_queue_time_seconds", "As hydrant_request_queue_time_seconds.",
                   requests.queue_time);
  to->Distribution("vllm:request_prefill_time_seconds", "As hydrant_request_prefill_time_seconds.",
                   requests.prefill_time);
  to->Distribution("vllm:request_decode_time_seconds", "As hydrant_request_decode_time_seconds.",
                   requests.decode_time);
}

}  // namespace

const char* WaitReasonName(WaitReason reason) {
  constexpr const char* kNames[kNumWaitReasons] = {"arrived",     "max_num_seqs", "pages",
                                                   "prompt_room", "block_tables", "catch_up",
                                                   "tpot",        "ttft",         "prefix"};
  return kNames[static_cast<int>(reason)];
}

std::string MetricsText(const MetricsArgs& args) {
  Families own;
  AddDaemon(args, &own);
  AddRequests(*args.requests, &own);
  AddTimes(*args.requests, &own);
  static const AuthorizerMetrics kNoAuthorizer;
  AddAuthorizer(args.authorizer != nullptr ? *args.authorizer : kNoAuthorizer, &own);
  static const ConnectionGuardMetrics kNoConnections;
  AddConnections(args.connections != nullptr ? *args.connections : kNoConnections, &own);
  static const SpanExporterMetrics kNoSpans;
  AddSpans(args.spans != nullptr ? *args.spans : kNoSpans, &own);
  AddCircuits(args, &own);
  static const Tenants kNoTenants;
  AddTenants(args.tenants != nullptr ? *args.tenants : kNoTenants, &own);
  AddProcess(args, &own);
  std::vector<MetricFamily> families;
  if (args.serving.model != nullptr) {
    const ServedModel& model = *args.serving.model;
    const ServingStats loop = args.serving.loop->Stats();
    const StepHistograms& metrics = args.serving.loop->histograms();
    AddModel(model, &own);
    AddLoop(loop, metrics, args.now, &own);
    AddContextStore(args.serving.contexts->metrics(), &own);
    static const PrefixArchiveMetrics kNoStore;
    AddPrefixStore(args.serving.prefixes != nullptr ? args.serving.prefixes->metrics() : kNoStore,
                   &own);
    Families vllm({{"model_name", ToValidUtf8(model.name)}});
    AddVllmLoop(model, loop, metrics, &vllm);
    AddVllmRequests(*args.requests, &vllm);
    families = vllm.Take();
  }
  std::vector<MetricFamily> all = own.Take();
  all.insert(all.end(), families.begin(), families.end());
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace hydrant
