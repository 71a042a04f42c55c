// One stream far beyond a model's context, with positions relative to the cache (`rolling`): checks
// whether quality and memory stay constant. Prints a line of JSON every --window tokens.
//
//   endless_stream --model FILE_OR_FOLDER [--text FILE] [--tokens 1000000] [--window 10000]
//                  [--policy streaming] [--budget 256] [--sinks 4] [--rolling true]
//                  [--prompt-tokens 64] [--max-model-len N] [--device cpu] [--dtype float32]
//                  [--threads 2] [--seed 1]
//
// With --text the model is fed the text, one token per step, and each token's likelihood is
// measured: lines {tokens, nll (mean of the window, in nats), entries (of the fullest KV head),
// rss_bytes, tokens_per_s}. Without it a request goes through scheduler and engine as in the
// daemon, sampling to the end: lines {tokens, pages, rss_bytes, tokens_per_s}. Fails with fewer
// than --tokens tokens, except at the end of a shorter text.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/model/gguf.h"
#include "engine/model/model_source.h"
#include "engine/run/engine.h"
#include "engine/run/engine_probe.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "scheduler/serving_loop.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;
using Flags = std::map<std::string, std::string>;

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "endless_stream: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Tokens per second since the last call.
class Speed {
 public:
  double Since(int64_t tokens) {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    return static_cast<double>(tokens - std::exchange(tokens_, tokens)) / seconds;
  }

 private:
  Clock::time_point last_ = Clock::now();
  int64_t tokens_ = 0;
};

struct Stream {
  CacheSpec cache;
  int64_t tokens;  // after the prompt
  int64_t window;
  int prompt_tokens;
  uint64_t seed;
};

double NegativeLogLikelihood(const std::vector<float>& logits, TokenId token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return std::log(sum) + top - logits[token];
}

// ---- Reading ------------------------------------------------------------------------------------

// The engine with one sequence, which has pages for its largest cache.
class Reader {
 public:
  Reader(Engine* engine, std::vector<TokenId> prompt, const CachePlan& plan, int64_t tokens)
      : engine_(engine), prompt_(std::move(prompt)), position_(static_cast<int>(prompt_.size())) {
    const EngineLimits& limits = engine->limits();
    const int32_t entries = plan.PeakEntries(position_ + tokens);
    const int32_t width = (entries + limits.block_size - 1) / limits.block_size;
    const int32_t pages = width * limits.num_layers * limits.num_kv_heads;
    if (pages > limits.num_blocks)
      Fail(absl::ResourceExhaustedError("the pool is too small: lower --tokens or --budget"));
    Batch batch;
    batch.Add(SlotSetup{0, plan});
    batch.Add(TableRow{0, 0, width});
    for (int32_t page = 0; page < pages; ++page) batch.AddTableWrite({page, page});
    batch.runs.push_back({.commit = Commit::kCompress,
                          .in_prompt = true,
                          .tokens = prompt_,
                          .part = {.layer_end = limits.num_layers, .token_end = position_}});
    batch.AddSampled(SamplingRow{.position = position_});
    Execute(batch);
  }
  void Read(TokenId token) {
    Batch batch;
    batch.runs.push_back({.tokens = std::span(&token, 1), .first_position = position_++});
    batch.AddSampled(SamplingRow{.position = position_});
    Execute(batch);
  }
  std::vector<float> Logits() const {
    return EngineProbe(*engine_).ReadLogits();
  }  // of the next token
  int Entries() const {
    size_t most = 0;
    for (int layer = 0; layer < engine_->limits().num_layers; ++layer) {
      for (int head = 0; head < engine_->limits().num_kv_heads; ++head)
        most = std::max(most, EngineProbe(*engine_).ReadHead(0, layer, head).positions.size());
    }
    return static_cast<int>(most);
  }

 private:
  void Execute(const Batch& batch) {
    StepResult result;
    if (const absl::Status status = engine_->Execute(batch, &result); !status.ok()) Fail(status);
  }

  Engine* engine_;
  std::vector<TokenId> prompt_;
  int32_t position_;
};

void Read(Engine* engine, const Stream& stream, const std::vector<TokenId>& ids) {
  const auto first = static_cast<size_t>(stream.prompt_tokens);
  if (ids.size() <= first) Fail(absl::InvalidArgumentError("--text: shorter than the prompt"));
  const absl::StatusOr<CachePlan> plan = PlanCache(stream.cache, {stream.prompt_tokens});
  if (!plan.ok()) Fail(plan.status());
  const int64_t count = std::min<int64_t>(stream.tokens, ids.size() - first);
  Reader reader(engine, {ids.begin(), ids.begin() + stream.prompt_tokens}, *plan, count);
  Speed speed;
  double sum = 0;
  int64_t summed = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += NegativeLogLikelihood(reader.Logits(), ids[first + i]);
    ++summed;
    reader.Read(ids[first + i]);
    if ((i + 1) % stream.window != 0 && i + 1 != count) continue;
    std::printf(
        "{\"tokens\": %lld, \"nll\": %.5f, \"entries\": %d, \"rss_bytes\": %lld, "
        "\"tokens_per_s\": %.0f}\n",
        static_cast<long long>(i) + 1, sum / static_cast<double>(summed), reader.Entries(),
        static_cast<long long>(ResidentBytes()), speed.Since(i + 1));
    std::fflush(stdout);
    sum = 0;
    summed = 0;
  }
}

// ---- Writing ------------------------------------------------------------------------------------

// Counts the tokens of the request.
class Counter final : public EventSink {
 public:
  void Deliver(std::vector<Event> events) override {
    std::lock_guard lock(mutex_);
    for (const Event& event : events) {
      if (const auto* failed = std::get_if<Failed>(&event.what)) Fail(failed->status);
      if (const auto* delta = std::get_if<Delta>(&event.what))
        tokens_ += delta->token_id.has_value() ? 1 : 0;
      ended_ = ended_ || std::holds_alternative<Finished>(event.what);
    }
    changed_.notify_one();
  }
  // Waits for the token of this number, or for the end; returns the number of tokens received.
  int64_t Wait(int64_t tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tokens_ >= tokens || ended_; });
    return tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t tokens_ = 0;
  bool ended_ = false;
};

void Write(Engine* engine, const Tokenizer& tokenizer, const Stream& stream) {
  Counter counter;
  auto loop = ServingLoop::Start(engine, &tokenizer, {}, &counter);
  if (!loop.ok()) Fail(loop.status());
  std::mt19937_64 rng(stream.seed);
  Request request;
  request.prompt.resize(stream.prompt_tokens);
  for (TokenId& token : request.prompt)
    token = static_cast<TokenId>(rng() % engine->config().vocab_size);
  request.cache = stream.cache;
  request.sampling.seed = rng();
  request.stopping.max_tokens = static_cast<int32_t>(stream.tokens);
  request.stopping.ignore_eos = true;
  const auto refused = (*loop)->Submit(1, std::move(request));
  if (const auto* failed = std::get_if<Failed>(&refused)) Fail(failed->status);
  Speed speed;
  int64_t came = 0;
  for (int64_t wanted = 0; wanted < stream.tokens;) {
    wanted = std::min(wanted + stream.window, stream.tokens);
    came = counter.Wait(wanted);
    const ServingStats snapshot = (*loop)->Stats();
    std::printf(
        "{\"tokens\": %lld, \"pages\": %lld, \"rss_bytes\": %lld, \"tokens_per_s\": %.0f}\n",
        static_cast<long long>(came),
        static_cast<long long>(snapshot.pages_total - snapshot.pages_free),
        static_cast<long long>(ResidentBytes()), speed.Since(came));
    std::fflush(stdout);
    if (came < wanted) Fail(absl::InternalError("the stream ended early"));
  }
}

// ---- The program --------------------------------------------------------------------------------

Flags ParseFlags(int argc, char** argv) {
  Flags flags = {
      {"model", ""},           {"text", ""},      {"tokens", "1000000"}, {"window", "10000"},
      {"policy", "streaming"}, {"budget", "256"}, {"sinks", "4"},        {"rolling", "true"},
      {"prompt-tokens", "64"}, {"device", "cpu"}, {"dtype", "float32"},  {"max-model-len", ""},
      {"threads", "2"},        {"seed", "1"}};
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc || std::strncmp(argv[i], "--", 2) != 0 || flags.count(argv[i] + 2) == 0)
      Fail(absl::InvalidArgumentError(std::string("unknown flag or no value: ") + argv[i]));
    flags[argv[i] + 2] = argv[i + 1];
  }
  return flags;
}

Stream StreamOf(const Flags& flags) {
  const auto number = [&](const char* name) {
    return std::max<int64_t>(0, std::atoll(flags.at(name).c_str()));
  };
  Stream stream = {.cache = {},
                   .tokens = std::clamp<int64_t>(number("tokens"), 1, INT32_MAX),
                   .window = std::max<int64_t>(1, number("window")),
                   .prompt_tokens = static_cast<int>(std::max<int64_t>(1, number("prompt-tokens"))),
                   .seed = static_cast<uint64_t>(number("seed"))};
  stream.cache.policy = flags.at("policy");
  if (stream.cache.policy == "full") return stream;
  stream.cache.max_cache_tokens = number("budget");
  if (stream.cache.policy != "streaming" && stream.cache.policy != "h2o") return stream;
  stream.cache.sink_tokens = number("sinks");
  stream.cache.params = {{"rolling", flags.at("rolling")}};
  return stream;
}

int Main(int argc, char** argv) {
  const Flags flags = ParseFlags(argc, argv);
  const Stream stream = StreamOf(flags);
  const std::map<std::string, WeightDType> dtypes = {{"bfloat16", WeightDType::kBFloat16},
                                                     {"float32", WeightDType::kFloat32},
                                                     {"stored", WeightDType::kStored}};
  if (dtypes.count(flags.at("dtype")) == 0)
    Fail(absl::InvalidArgumentError("--dtype: bfloat16, float32 or stored"));
  auto opened = OpenModel(flags.at("model"), LoadFormat::kAuto);
  if (!opened.ok()) Fail(opened.status());
  const std::shared_ptr<const ModelSource> source = *std::move(opened);
  const auto tokenizer = source->gguf() != nullptr ? TokenizerFromGguf(*source->gguf())
                                                   : TokenizerFromPath(source->folder());
  if (!tokenizer.ok()) Fail(tokenizer.status());

  EngineOptions options;
  options.device = flags.at("device");
  options.num_threads = std::max(1, std::atoi(flags.at("threads").c_str()));
  options.dtype = dtypes.at(flags.at("dtype"));
  options.max_num_seqs = 1;
  if (!flags.at("max-model-len").empty())
    options.max_model_len = std::atoi(flags.at("max-model-len").c_str());
  const auto engine = Engine::Create(source, options, nullptr);
  if (!engine.ok()) Fail(engine.status());
  if (flags.at("text").empty()) {
    Write(engine->get(), **tokenizer, stream);
    return 0;
  }
  std::ifstream file(flags.at("text"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto ids = (*tokenizer)->Encode(text, {.add_special_tokens = true});
  if (!ids.ok()) Fail(ids.status());
  Read(engine->get(), stream, *ids);
  return 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) { return hydrant::Main(argc, argv); }
