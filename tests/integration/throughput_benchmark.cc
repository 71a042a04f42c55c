// Throughput of scheduler and engine together, as in the daemon but without gRPC: requests of equal
// length, random prompts and random weights of a real model's shape, greedy, no end of text. The
// pool holds a given number of full sequences; the benchmark measures the use that a policy makes
// of it.
//
//   throughput_benchmark --shape tests/engine/run/shapes/llama-7b.json [--policies full:24,h2o]
//                        [--pool-sequences 24] [--prompt-tokens 2048] [--new-tokens 2048]
//                        [--requests 256] [--max-num-seqs 256] [--max-num-batched-tokens N]
//                        [--cache-ratio 0.2] [--seconds 0] [--device cuda] [--dtype bfloat16]
//                        [--shared-tokens 0] [--threads 2] [--seed 1] [--json FILE] [--quick 0]
//
// "full:24" keeps at most 24 requests in flight; a plain name leaves it to the scheduler, which
// admits more full sequences than can grow to their end and preempts some. --seconds limits the
// time of every policy: tokens until then count. The first --shared-tokens of all prompts are the
// same, and the prefix cache holds them. Prints a markdown table; ratios are relative to the first
// policy. --quick 1 makes everything small, as a smoke test.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine/model/model_source.h"
#include "engine/run/engine.h"
#include "scheduler/serving_loop.h"
#include "tests/measurement_log.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;
using Flags = std::map<std::string, std::string>;

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "throughput_benchmark: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

// Ids without texts: every token is an "x", none ends a text.
class PlainTokenizer final : public Tokenizer {
 public:
  explicit PlainTokenizer(int vocab) : vocab_(static_cast<TokenId>(vocab)) {}
  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view,
                                              const EncodeOptions&) const override {
    return absl::UnimplementedError("prompts are token ids");
  }
  std::string TokenBytes(TokenId, bool, bool) const override { return "x"; }
  TokenId VocabSize() const override { return vocab_; }
  bool IsSpecial(TokenId) const override { return false; }
  int64_t bos_id() const override { return -1; }
  const std::vector<TokenId>& eog_ids() const override { return eog_; }
  std::string TokenText(TokenId) const override { return ""; }

 private:
  const TokenId vocab_;
  const std::vector<TokenId> eog_;
};

// Counts the loop's events, from construction until Close(). A request that fails before that ends
// the process.
class Counter final : public EventSink {
 public:
  struct Step {
    Clock::time_point end;
    int sequences;  // with a new token
  };
  struct Totals {
    int64_t tokens = 0;
    int finished = 0;
    std::vector<Step> steps;  // with at least one token
  };

  void Deliver(std::vector<Event> events) override {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    int sequences = 0;
    for (const Event& event : events) {
      if (const auto* failed = std::get_if<Failed>(&event.what)) Fail(failed->status);
      totals_.finished += std::holds_alternative<Finished>(event.what);
      if (const auto* delta = std::get_if<Delta>(&event.what)) {
        totals_.tokens += delta->token_id.has_value() ? 1 : 0;
        ++sequences;
      }
    }
    if (sequences > 0) totals_.steps.push_back({Clock::now(), sequences});
    changed_.notify_one();
  }
  // Returns the number of finished requests: more than `finished`, unless the deadline has passed.
  int WaitForMore(int finished, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return totals_.finished > finished; });
    return totals_.finished;
  }
  Totals Close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    return std::move(totals_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Totals totals_;
  bool closed_ = false;
};

struct Workload {
  int requests;
  int prompt_tokens;
  int shared_tokens;  // prefix shared by all prompts
  int new_tokens;
  double cache_ratio;
  double seconds;  // per policy; 0: to the end
  uint64_t seed;
};

struct PolicyRun {
  std::string policy;
  int in_flight;  // limit of concurrent requests
};

// Parses "full:24,h2o".
std::vector<PolicyRun> ParsePolicies(const std::string& text, int requests) {
  std::vector<PolicyRun> runs;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const size_t colon = std::min(item.find(':'), item.size());
    const int limit = colon < item.size() ? std::atoi(item.c_str() + colon + 1) : requests;
    runs.push_back({item.substr(0, colon), std::clamp(limit, 1, requests)});
    begin = end + 1;
  }
  return runs;
}

Request MakeRequest(const Workload& work, const std::string& policy, int index, int vocab) {
  std::mt19937_64 shared(work.seed - 1), own(work.seed + index);
  Request request;
  request.prompt.resize(work.prompt_tokens);
  for (int i = 0; i < work.prompt_tokens; ++i)
    request.prompt[i] = static_cast<TokenId>((i < work.shared_tokens ? shared : own)() % vocab);
  request.cache.policy = policy;
  if (policy != "full") request.cache.cache_ratio = work.cache_ratio;
  request.sampling.temperature = 0.0;
  request.stopping.max_tokens = work.new_tokens;
  request.stopping.ignore_eos = true;
  return request;
}

struct Outcome {
  Counter::Totals totals;
  double seconds = 0.0;
  uint64_t preemptions = 0;
  double host_us = 0.0;  // of the loop per step, without waiting for the device
};

// Submits requests as earlier ones finish, until all have finished or the time is over.
Outcome Drive(Engine* engine, const SchedulerOptions& options, const Workload& work,
              const PolicyRun& run) {
  const PlainTokenizer tokenizer(engine->config().vocab_size);
  Counter counter;
  auto loop = ServingLoop::Start(engine, &tokenizer, options, &counter);
  if (!loop.ok()) Fail(loop.status());

  std::vector<Request> requests;
  requests.reserve(work.requests);
  for (int i = 0; i < work.requests; ++i)
    requests.push_back(MakeRequest(work, run.policy, i, engine->config().vocab_size));
  const Clock::time_point start = Clock::now();
  const auto deadline = work.seconds > 0 ? start + std::chrono::duration_cast<Clock::duration>(
                                                       std::chrono::duration<double>(work.seconds))
                                         : Clock::time_point::max();
  int submitted = 0, finished = 0;
  while (finished < work.requests && Clock::now() < deadline) {
    while (submitted < work.requests && submitted - finished < run.in_flight) {
      const auto refused = (*loop)->Submit(submitted + 1, std::move(requests[submitted]));
      if (const auto* failed = std::get_if<Failed>(&refused)) Fail(failed->status);
      ++submitted;
    }
    finished = counter.WaitForMore(finished, deadline);
  }
  Outcome outcome{.totals = counter.Close()};
  const bool cut_off = finished < work.requests;
  const Clock::time_point end =
      cut_off || outcome.totals.steps.empty() ? Clock::now() : outcome.totals.steps.back().end;
  outcome.seconds = std::chrono::duration<double>(end - start).count();
  if (!cut_off) {
    while (!(*loop)->Idle()) std::this_thread::yield();
    const ServingStats snapshot = (*loop)->Stats();
    if (snapshot.pages_free != snapshot.pages_total)
      Fail(absl::InternalError("pages were lost in the run"));
  }
  const ServingStats snapshot = (*loop)->Stats();
  outcome.preemptions = snapshot.preemptions;
  outcome.host_us =
      static_cast<double>(snapshot.host_us) / std::max(1.0, static_cast<double>(snapshot.steps));
  return outcome;
}

// The given quantile of the milliseconds between steps with tokens.
double StepMs(const std::vector<Counter::Step>& steps, double quantile) {
  std::vector<double> gaps;
  for (size_t i = 1; i < steps.size(); ++i)
    gaps.push_back(std::chrono::duration<double>(steps[i].end - steps[i - 1].end).count() * 1e3);
  if (gaps.empty()) return 0.0;
  std::sort(gaps.begin(), gaps.end());
  return gaps[static_cast<size_t>(quantile * static_cast<double>(gaps.size() - 1))];
}

std::unique_ptr<Engine> MakeEngine(const std::shared_ptr<const ModelSource>& source,
                                   const EngineOptions& options) {
  auto engine = Engine::Create(source, options, nullptr);
  if (!engine.ok()) Fail(engine.status());
  return *std::move(engine);
}

class Report {
 public:
  Report(const Flags& flags, const Workload& work)
      : flags_(flags), work_(work), log_(flags.at("json")) {}

  void Begin(const Engine& engine) {
    std::printf(
        "%s; %.2f GB of weights; %s; a pool of %d pages, %s full sequences; %d requests of %d + "
        "%d tokens, cache ratio %.2f but for full, seed %llu\n\n",
        engine.Description().c_str(), static_cast<double>(engine.memory().weights) * 1e-9,
        Model().c_str(), engine.limits().num_blocks, flags_.at("pool-sequences").c_str(),
        work_.requests, work_.prompt_tokens, work_.new_tokens, work_.cache_ratio,
        static_cast<unsigned long long>(work_.seed));
    std::printf(
        "| policy | most in flight | peak batch | mean batch | output tokens/s | ratio | "
        "preemptions | ms between steps, p50 / p99 | host us a step | seconds | finished "
        "|\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    log_.Write("device",
               {{"program", "throughput_benchmark"}, {"description", engine.Description()}});
  }
  void Add(const PolicyRun& run, const Outcome& outcome) {
    const std::vector<Counter::Step>& steps = outcome.totals.steps;
    if (steps.empty()) {
      std::printf("| %s | %d | no token in %.1f seconds | | | | | | | | |\n", run.policy.c_str(),
                  run.in_flight, outcome.seconds);
      return;
    }
    int peak = 0;
    for (const Counter::Step& step : steps) peak = std::max(peak, step.sequences);
    const auto tokens = static_cast<double>(outcome.totals.tokens);
    const double mean = tokens / static_cast<double>(steps.size());
    const double speed = tokens / outcome.seconds;
    if (first_ == 0.0) first_ = speed;
    const double p50 = StepMs(steps, 0.5), p99 = StepMs(steps, 0.99);
    std::printf("| %s | %d | %d | %.1f | %.0f | %.2f | %llu | %.2f / %.2f | %.0f | %.1f%s | %d |\n",
                run.policy.c_str(), run.in_flight, peak, mean, speed, speed / first_,
                static_cast<unsigned long long>(outcome.preemptions), p50, p99, outcome.host_us,
                outcome.seconds, outcome.totals.finished < work_.requests ? ", cut off" : "",
                outcome.totals.finished);
    std::fflush(stdout);
    log_.Write("throughput", {{"model", Model()},
                              {"policy", run.policy},
                              {"in_flight", run.in_flight},
                              {"pool_sequences", std::atoi(flags_.at("pool-sequences").c_str())},
                              {"requests", work_.requests},
                              {"finished", outcome.totals.finished},
                              {"prompt_tokens", work_.prompt_tokens},
                              {"new_tokens", work_.new_tokens},
                              {"peak_batch", peak},
                              {"mean_batch", mean},
                              {"tokens_per_s", speed},
                              {"preemptions", outcome.preemptions},
                              {"step_ms_p50", p50},
                              {"step_ms_p99", p99},
                              {"host_us", outcome.host_us},
                              {"seconds", outcome.seconds}});
  }

 private:
  std::string Model() const { return std::filesystem::path(flags_.at("shape")).stem().string(); }

  const Flags& flags_;
  const Workload& work_;
  MeasurementLog log_;
  double first_ = 0.0;  // tokens a second of the first policy
};

Flags ParseFlags(int argc, char** argv) {
  Flags flags = {{"shape", ""},          {"policies", "full:24,h2o"},
                 {"device", "cuda"},     {"dtype", "bfloat16"},
                 {"threads", "2"},       {"pool-sequences", "24"},
                 {"requests", "256"},    {"prompt-tokens", "2048"},
                 {"new-tokens", "2048"}, {"max-num-seqs", "256"},
                 {"seconds", "0"},       {"max-num-batched-tokens", ""},
                 {"seed", "1"},          {"cache-ratio", "0.2"},
                 {"shared-tokens", "0"}, {"json", ""},
                 {"quick", "0"}};
  Flags given;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc || std::strncmp(argv[i], "--", 2) != 0 || flags.count(argv[i] + 2) == 0)
      Fail(absl::InvalidArgumentError(std::string("unknown flag or no value: ") + argv[i]));
    given[argv[i] + 2] = argv[i + 1];
  }
  if (given.count("quick") > 0 && given["quick"] != "0") {
    given.merge(Flags{{"policies", "full:2,h2o"},
                      {"pool-sequences", "2"},
                      {"requests", "6"},
                      {"prompt-tokens", "160"},
                      {"new-tokens", "40"},
                      {"max-num-seqs", "6"}});
  }
  given.merge(flags);
  return given;
}

int Main(int argc, char** argv) {
  const Flags flags = ParseFlags(argc, argv);
  const auto number = [&](const char* name) {
    return std::max(1, std::atoi(flags.at(name).c_str()));
  };
  const Workload work = {.requests = number("requests"),
                         .prompt_tokens = number("prompt-tokens"),
                         .shared_tokens = std::atoi(flags.at("shared-tokens").c_str()),
                         .new_tokens = number("new-tokens"),
                         .cache_ratio = std::atof(flags.at("cache-ratio").c_str()),
                         .seconds = std::atof(flags.at("seconds").c_str()),
                         .seed = static_cast<uint64_t>(std::atoll(flags.at("seed").c_str()))};
  const std::map<std::string, WeightDType> dtypes = {{"bfloat16", WeightDType::kBFloat16},
                                                     {"float32", WeightDType::kFloat32}};
  if (dtypes.count(flags.at("dtype")) == 0)
    Fail(absl::InvalidArgumentError("--dtype: bfloat16 or float32"));
  auto opened = OpenModel(flags.at("shape"), LoadFormat::kDummy);
  if (!opened.ok()) Fail(opened.status());
  const std::shared_ptr<const ModelSource> source = *std::move(opened);

  EngineOptions options;
  options.device = flags.at("device");
  options.num_threads = number("threads");
  options.dtype = dtypes.at(flags.at("dtype"));
  options.max_num_seqs = number("max-num-seqs");
  options.max_model_len = work.prompt_tokens + work.new_tokens;
  options.prefix_cache_memory_bytes = work.shared_tokens > 0 ? int64_t{1} << 30 : 0;
  const int width = (*options.max_model_len + options.block_size - 1) / options.block_size;
  options.num_blocks_override = number("pool-sequences") * width * source->config().num_layers *
                                source->config().num_kv_heads;
  SchedulerOptions scheduling;
  scheduling.max_num_queued_reqs = work.requests;
  scheduling.max_num_queued_tokens = int64_t{work.requests} * *options.max_model_len;
  if (!flags.at("max-num-batched-tokens").empty())
    scheduling.max_num_batched_tokens = number("max-num-batched-tokens");

  Report report(flags, work);
  bool begun = false;
  for (const PolicyRun& run : ParsePolicies(flags.at("policies"), work.requests)) {
    const std::unique_ptr<Engine> engine = MakeEngine(source, options);
    if (!std::exchange(begun, true)) report.Begin(*engine);
    Workload warm_up = work;
    warm_up.requests = std::min(work.requests, 2);
    warm_up.new_tokens = std::min(work.new_tokens, 8);
    warm_up.seconds = 0;
    Drive(engine.get(), scheduling, warm_up, run);
    report.Add(run, Drive(engine.get(), scheduling, work, run));
  }
  return 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) { return hydrant::Main(argc, argv); }
