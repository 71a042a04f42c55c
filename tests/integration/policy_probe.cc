// Measures the entries that a cache policy keeps of a prompt, and the loss in quality, for
// tools/benchmarks/peer_kvpress.py. Each line of JSON on stdin is a question; each line on stdout
// is an answer, in the same order.
//
//   policy_probe --model FILE_OR_FOLDER [--device cpu] [--dtype float32] [--threads 2]
//                [--max-tokens 2048] [--batch 8]
//
// {"id": any, "tokens": [..], "context": n, "generate": k, "cache": {..}, "probe": [..],
//  "append": false, "positions": false}
//   The first n tokens (all, if unset) are prefilled and compressed as `cache` specifies: policy,
//   max_cache_tokens, cache_ratio, min_cache_tokens, sink_tokens, protected_window_size,
//   min_retained_mass, params {name: text or number}. The later tokens are fed one by one, then k
//   are generated, greedily. `probe` is the instruction between the context and its repetition,
//   for policies with a second pass (unset: the daemon's). With `append` no entry is evicted after
//   the prompt has been compressed, whatever the policy does during decode.
// -> {"id", "nll": mean over the fed tokens in nats, "tokens": generated, "text": the same,
//     "entries": kept by all heads together, "retained_mass": mean over the heads,
//     "chosen": the choices in the policy's report (PolicyReport), if any,
//     "kept": [layer][head][..] positions, if `positions`}
// {"id": any, "text": "..."} -> {"id", "tokens": [..]}, without special tokens
// A rejected question is answered by {"id", "error"}. --max-tokens bounds the prefill of a line,
// probe included; up to --batch lines decode as one batch.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/prompt_scorer.h"
#include "engine/model/gguf.h"
#include "engine/model/model_source.h"
#include "engine/run/engine.h"
#include "engine/run/engine_probe.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tools/eval/engine_driver.h"

namespace hydrant {
namespace {

using eval::EngineDriver;
using Json = nlohmann::json;
using Flags = std::map<std::string, std::string>;
using Ids = std::vector<TokenId>;

constexpr char kUsage[] =
    "policy_probe --model FILE_OR_FOLDER [--device cpu] [--dtype float32|bfloat16|stored]\n"
    "             [--threads 2] [--max-tokens 2048] [--batch 8]\n"
    "Reads questions about cache policies, a line of JSON each, from stdin and answers on stdout;\n"
    "the file's first comment describes them.\n";
constexpr std::string_view kInstruction = "\n\nRepeat the previous context:";

[[noreturn]] void Fail(const std::string& message) {
  std::fprintf(stderr, "policy_probe: %s\n", message.c_str());
  std::exit(1);
}

struct Question {
  Json id;
  std::string error = "";
  CachePlan plan = {};
  Ids reading = {};  // context and probe
  Ids given = {};    // after the context
  int generate = 0;
  bool positions = false;
};

class Laboratory {
 public:
  Laboratory(Engine* engine, const Tokenizer* tokenizer, int max_tokens)
      : engine_(engine), tokenizer_(tokenizer), max_tokens_(max_tokens) {}

  // REQUIRES: `asked` is an object. Errors are stored in the question.
  Question Understand(const Json& asked) const;
  // Answers all questions in one batch.
  std::vector<Json> Answer(const std::vector<Question>& questions) const;
  Json Tokens(const Json& asked) const;

 private:
  Ids Encode(std::string_view text) const;
  Json Kept(int slot, bool positions, int64_t* entries) const;

  Engine* engine_;
  const Tokenizer* tokenizer_;
  int max_tokens_;
};

double NegativeLogLikelihood(const std::vector<float>& logits, TokenId token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return std::log(sum) + top - logits[token];
}

CacheSpec SpecOf(const Json& cache) {
  CacheSpec spec;
  spec.policy = cache.value("policy", "full");
  const auto set = [&](const char* name, auto& field) {
    if (cache.contains(name)) field = cache[name].get<std::decay_t<decltype(*field)>>();
  };
  set("max_cache_tokens", spec.max_cache_tokens);
  set("cache_ratio", spec.cache_ratio);
  set("min_cache_tokens", spec.min_cache_tokens);
  set("sink_tokens", spec.sink_tokens);
  set("protected_window_size", spec.protected_window_size);
  set("min_retained_mass", spec.min_retained_mass);
  const Json params = cache.value("params", Json::object());
  for (const auto& [name, value] : params.items())
    spec.params[name] = value.is_string() ? value.get<std::string>() : value.dump();
  return spec;
}

Ids Laboratory::Encode(std::string_view text) const {
  const auto ids =
      tokenizer_->Encode(text, {.add_special_tokens = false, .parse_special_tokens = false});
  if (!ids.ok()) Fail(std::string(ids.status().message()));
  return *ids;
}

Json Laboratory::Tokens(const Json& asked) const {
  return {{"id", asked["id"]}, {"tokens", Encode(asked["text"].get<std::string>())}};
}

Question Laboratory::Understand(const Json& asked) const {
  Question question = {.id = asked.value("id", Json())};
  const auto tokens = asked.value("tokens", Ids());
  const auto context = asked.value("context", tokens.size());
  const auto in_vocab = [&](TokenId id) { return id < tokenizer_->VocabSize(); };
  if (context < 1 || context > tokens.size()) {
    question.error = "context: not in [1, tokens]";
  } else if (!std::all_of(tokens.begin(), tokens.end(), in_vocab)) {
    question.error = "tokens: an id is not in the vocabulary";
  }
  if (!question.error.empty()) return question;
  const EngineLimits& limits = engine_->limits();
  const auto plan =
      PlanCache(SpecOf(asked.value("cache", Json::object())),
                {static_cast<int64_t>(context), limits.num_layers, limits.num_kv_heads});
  if (!plan.ok()) {
    question.error = std::string(plan.status().message());
    return question;
  }
  question.plan = *plan;
  if (asked.value("append", false) && !plan->retention->CompactsWithoutCaps()) {
    question.plan.cap = kNoCap;
    question.plan.rule.scored = false;
  }
  const auto split = tokens.begin() + static_cast<std::ptrdiff_t>(context);
  question.reading.assign(tokens.begin(), split);
  question.given.assign(split, tokens.end());
  if (plan->scorer->Name() == "probe" && plan->Compresses()) {
    const Ids probe = asked.contains("probe") ? asked["probe"].get<Ids>() : Encode(kInstruction);
    question.reading.insert(question.reading.end(), probe.begin(), probe.end());
    question.reading.insert(question.reading.end(), tokens.begin(), split);
  }
  question.generate = std::max(0, asked.value("generate", 0));
  question.positions = asked.value("positions", false);
  const size_t read = std::max(question.reading.size(), tokens.size() + question.generate);
  if (read > static_cast<size_t>(max_tokens_))
    question.error = "tokens: " + std::to_string(read) + " are more than --max-tokens";
  return question;
}

Json Laboratory::Kept(int slot, bool positions, int64_t* entries) const {
  Json layers = Json::array();
  for (int layer = 0; layer < engine_->limits().num_layers; ++layer) {
    Json heads = Json::array();
    for (int head = 0; head < engine_->limits().num_kv_heads; ++head) {
      std::vector<int32_t> kept = EngineProbe(*engine_).ReadHead(slot, layer, head).positions;
      *entries += static_cast<int64_t>(kept.size());
      std::sort(kept.begin(), kept.end());
      if (positions) heads.push_back(std::move(kept));
    }
    layers.push_back(std::move(heads));
  }
  return layers;
}

// The progress of a question.
struct Course {
  size_t given = 0;  // fed tokens with their likelihood in nll
  double nll = 0;
  Ids generated = {};
  bool done = false;
};

std::vector<Json> Laboratory::Answer(const std::vector<Question>& questions) const {
  EngineDriver driver(engine_, 1);
  std::vector<Json> answers;
  std::vector<Course> courses(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    const int slot = driver.Add(question.reading, question.plan,
                                static_cast<int>(question.given.size()) + question.generate);
    driver.PrefillAll(slot);
  }
  driver.Step();
  for (size_t i = 0; i < questions.size(); ++i) {
    const int slot = static_cast<int>(i);
    int64_t entries = 0;
    Json answer = {{"id", questions[i].id}};
    Json kept = Kept(slot, questions[i].positions, &entries);
    if (questions[i].positions) answer["kept"] = std::move(kept);
    answer["entries"] = entries;
    const std::vector<float>& mass = driver.RetainedMass(slot);
    double sum = 0;
    for (const float share : mass) sum += share;
    if (!mass.empty()) answer["retained_mass"] = sum / static_cast<double>(mass.size());
    const PolicyReport report = ReportOf(driver.Plan(static_cast<int>(i)));
    for (const auto& [name, value] : report.values) {
      std::visit([&, &of = name](const auto& v) { answer["chosen"][of] = v; }, value);
    }
    answers.push_back(std::move(answer));
  }
  for (bool more = true; more;) {
    more = false;
    for (size_t i = 0; i < questions.size(); ++i) {
      const Question& question = questions[i];
      Course& course = courses[i];
      if (course.done) continue;
      const int slot = static_cast<int>(i);
      const auto seen = static_cast<int>(question.plan.prompt.tokens);
      if (course.given < question.given.size()) {
        const TokenId token = question.given[course.given];
        course.nll += NegativeLogLikelihood(driver.Logits(slot), token);
        driver.DecodeToken(slot, token, seen + static_cast<int>(course.given));
        ++course.given;
        course.done = course.given == question.given.size() && question.generate == 0;
      } else if (course.generated.size() < static_cast<size_t>(question.generate)) {
        course.generated.push_back(driver.last_token(slot));
        course.done = course.generated.size() == static_cast<size_t>(question.generate);
        if (course.done) continue;
        driver.Decode(slot);
      } else {
        course.done = true;
        continue;
      }
      more = true;
    }
    if (more) driver.Step();
  }
  for (size_t i = 0; i < questions.size(); ++i) {
    const Course& course = courses[i];
    if (course.given > 0) answers[i]["nll"] = course.nll / static_cast<double>(course.given);
    answers[i]["tokens"] = course.generated;
    std::string text;
    for (const TokenId id : course.generated) text += tokenizer_->TokenBytes(id, true, false);
    answers[i]["text"] = text;
  }
  return answers;
}

void Print(const Json& answer) {
  // A text may end within a character.
  std::puts(answer.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

void AnswerAll(const Laboratory& laboratory, size_t batch) {
  std::vector<Question> waiting;
  const auto answer = [&] {
    if (waiting.empty()) return;
    for (const Json& line : laboratory.Answer(waiting)) Print(line);
    waiting.clear();
  };
  for (std::string line; std::getline(std::cin, line);) {
    const Json asked = Json::parse(line, nullptr, false);
    if (!asked.is_object()) Fail("a line is no JSON object");
    if (asked.contains("text")) {
      answer();
      Print(laboratory.Tokens(asked));
      continue;
    }
    Question question = laboratory.Understand(asked);
    if (!question.error.empty()) {
      answer();
      Print({{"id", question.id}, {"error", question.error}});
      continue;
    }
    waiting.push_back(std::move(question));
    if (waiting.size() == batch) answer();
  }
  answer();
}

Flags ParseFlags(int argc, char** argv) {
  Flags flags = {{"model", ""},    {"device", "cpu"},      {"dtype", "float32"},
                 {"threads", "2"}, {"max-tokens", "2048"}, {"batch", "8"}};
  for (int i = 1; i < argc; i += 2) {
    if (std::strcmp(argv[i], "--help") == 0) {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (i + 1 == argc || std::strncmp(argv[i], "--", 2) != 0 || flags.count(argv[i] + 2) == 0)
      Fail(std::string("unknown flag or no value: ") + argv[i]);
    flags[argv[i] + 2] = argv[i + 1];
  }
  return flags;
}

int Main(int argc, char** argv) {
  const Flags flags = ParseFlags(argc, argv);
  const auto number = [&](const char* name) {
    return std::max(1, std::atoi(flags.at(name).c_str()));
  };
  const std::map<std::string, WeightDType> dtypes = {{"bfloat16", WeightDType::kBFloat16},
                                                     {"float32", WeightDType::kFloat32},
                                                     {"stored", WeightDType::kStored}};
  if (dtypes.count(flags.at("dtype")) == 0) Fail("--dtype: bfloat16, float32 or stored");
  auto opened = OpenModel(flags.at("model"), LoadFormat::kAuto);
  if (!opened.ok()) Fail(std::string(opened.status().message()));
  const std::shared_ptr<const ModelSource> source = *std::move(opened);
  const auto tokenizer = source->gguf() != nullptr ? TokenizerFromGguf(*source->gguf())
                                                   : TokenizerFromPath(source->folder());
  if (!tokenizer.ok()) Fail(std::string(tokenizer.status().message()));
  const int tokens = number("max-tokens"), batch = number("batch");
  const ModelConfig& config = source->config();
  EngineOptions options;
  options.device = flags.at("device");
  options.num_threads = number("threads");
  options.dtype = dtypes.at(flags.at("dtype"));
  options.kv_cache_dtype = DType::kF32;
  options.max_num_seqs = batch;
  options.max_model_len = tokens;
  options.prefill_arena_tokens = tokens * batch;
  // Twice: for heads with a layer budget the driver allocates their largest need again.
  const int pages = (tokens + options.block_size - 1) / options.block_size;
  options.num_blocks_override = 2 * batch * pages * config.num_layers * config.num_kv_heads;
  const auto engine = Engine::Create(source, options, nullptr);
  if (!engine.ok()) Fail(std::string(engine.status().message()));
  AnswerAll(Laboratory(engine->get(), tokenizer->get(), tokens), static_cast<size_t>(batch));
  return 0;
}

}  // namespace
}  // namespace hydrant

int main(int argc, char** argv) { return hydrant::Main(argc, argv); }
