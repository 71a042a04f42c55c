#include "tools/eval/laboratory.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/cache/kv_cache_manager.h"
#include "engine/cache/prompt_scorer.h"
#include "engine/model/model_source.h"
#include "engine/run/engine_probe.h"
#include "kernels/status_macros.h"
#include "tools/eval/engine_driver.h"

namespace hydrant::eval {
namespace {

// The daemon's default.
constexpr std::string_view kProbeInstruction = "\n\nRepeat the previous context:";

// Scores by the attention of the queries after the prompt, which a policy cannot know.
class Continuation final : public PromptScorer {
 public:
  bool ReadsProbe() const override { return true; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int /*read*/) const override {
    return {{.first_query = static_cast<int32_t>(plan.prompt.tokens)}};
  }
  const float* Score(const PromptLayer& layer) const override { return layer.statistics[0]; }
};

// ln(sum(exp(logits)))
double LogSum(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return std::log(sum) + top;
}

size_t Best(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

double Divergence(std::span<const float> full, std::span<const float> other) {
  const double log_full = LogSum(full), log_other = LogSum(other);
  double sum = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    const double log_p = full[i] - log_full;
    sum += std::exp(log_p) * (log_p - (other[i] - log_other));
  }
  return std::max(0.0, sum);
}

// An arm of a trial with its plan from PlanCache.
struct PlannedArm {
  size_t outcome = 0;  // index in the result
  CachePlan plan;
  bool is_oracle = false;
  int slot = -1;
};

}  // namespace

struct Laboratory::Impl {
  LaboratoryOptions options;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<TokenId> instruction;

  absl::StatusOr<CachePlan> PlanOf(const Arm& arm, const Trial& trial) const;
  void RunGroup(const Trial& trial, std::span<PlannedArm> group, std::vector<Outcome>* outcomes);
  void Prefill(const Trial& trial, std::span<PlannedArm> group, EngineDriver* driver) const;
  Outcome AfterPrefill(const PlannedArm& arm, EngineDriver* driver) const;
  std::vector<std::vector<int32_t>> Held(int slot) const;
  void TeacherForce(const Trial& trial, std::span<PlannedArm> group, EngineDriver* driver,
                    std::vector<Outcome>* outcomes) const;
  void Generate(const Trial& trial, std::span<PlannedArm> group, EngineDriver* driver,
                std::vector<Outcome>* outcomes) const;
};

absl::StatusOr<std::unique_ptr<Laboratory>> Laboratory::Create(const std::string& model,
                                                               const LaboratoryOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  HYDRANT_ASSIGN_OR_RETURN(const std::shared_ptr<const ModelSource> source,
                           OpenModel(model, LoadFormat::kAuto));
  HYDRANT_ASSIGN_OR_RETURN(impl->tokenizer, source->gguf() != nullptr
                                                ? TokenizerFromGguf(*source->gguf())
                                                : TokenizerFromPath(source->folder()));
  EngineOptions engine = options.engine;
  engine.sampled_vocab = static_cast<int>(impl->tokenizer->VocabSize());
  engine.max_num_seqs = options.max_arms + 1;
  engine.max_shared_statistics = 3 * engine.max_num_seqs;
  // Room for a prefill, one with a probe, and the oracle's.
  engine.prefill_arena_tokens = 4 * engine.max_model_len.value_or(source->config().max_context);
  HYDRANT_ASSIGN_OR_RETURN(impl->engine, Engine::Create(source, engine, nullptr));
  std::unique_ptr<Laboratory> laboratory(new Laboratory(std::move(impl)));
  laboratory->impl_->instruction = laboratory->Encode(kProbeInstruction);
  return laboratory;
}

Laboratory::Laboratory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Laboratory::~Laboratory() = default;

int Laboratory::max_tokens() const { return impl_->engine->limits().max_model_len; }
const Tokenizer& Laboratory::tokenizer() const { return *impl_->tokenizer; }
const ModelConfig& Laboratory::config() const { return impl_->engine->config(); }
std::string Laboratory::Description() const { return impl_->engine->Description(); }

std::vector<TokenId> Laboratory::Encode(std::string_view text) const {
  auto ids =
      impl_->tokenizer->Encode(text, {.add_special_tokens = false, .parse_special_tokens = false});
  return ids.ok() ? *std::move(ids) : std::vector<TokenId>();
}

absl::StatusOr<CachePlan> Laboratory::Impl::PlanOf(const Arm& arm, const Trial& trial) const {
  const EngineLimits& limits = engine->limits();
  const int context = trial.context;
  CacheSpec spec = arm.cache;
  if (arm.is_oracle) {
    spec.policy = "reconstruct";
    spec.params.try_emplace("budget_scope", "head");
  }
  const bool fits_two_passes =
      2 * context + static_cast<int>(instruction.size()) <= limits.max_model_len;
  absl::StatusOr<CachePlan> plan = PlanCache(spec, {.tokens = context,
                                                    .num_layers = limits.BudgetLayers(),
                                                    .num_kv_heads = limits.num_kv_heads,
                                                    .question_tokens = trial.question_tokens,
                                                    .fits_two_passes = fits_two_passes});
  if (!plan.ok()) return plan;
  if (arm.is_oracle) plan->scorer = std::make_shared<Continuation>();
  if (trial.append.value_or(options.append) && !plan->retention->CompactsWithoutCaps() &&
      !plan->rule.weighted) {
    plan->cap = kNoCap;
    plan->rule.scored = false;
  }
  if (plan->ReadsProbe() && !arm.is_oracle && !fits_two_passes)
    return absl::InvalidArgumentError(absl::StrCat("prompt and repetition, 2 * ", context,
                                                   " tokens and an instruction, exceed ",
                                                   limits.max_model_len));
  return plan;
}

std::vector<Outcome> Laboratory::Run(const Trial& trial, const std::vector<Arm>& arms) {
  std::vector<Outcome> outcomes(arms.size() + 1);
  const EngineLimits& limits = impl_->engine->limits();
  const KvCacheManager kv_cache(limits);
  const auto tokens = static_cast<int64_t>(trial.tokens.size()) + trial.generate;
  std::vector<PlannedArm> group = {{0, *impl_->PlanOf({}, trial)}};
  const int64_t of_full = kv_cache.PagesFor(group[0].plan, tokens);
  int64_t pages = of_full;
  // Groups as large as the pool allows; each includes the full cache as the baseline.
  const auto run = [&] {
    if (group.size() > 1 || arms.empty()) impl_->RunGroup(trial, group, &outcomes);
    group.resize(1);
    pages = of_full;
  };
  for (size_t i = 0; i < arms.size(); ++i) {
    const absl::StatusOr<CachePlan> plan = impl_->PlanOf(arms[i], trial);
    if (!plan.ok()) {
      outcomes[i + 1].refused = plan.status();
      continue;
    }
    const int64_t needed = kv_cache.PagesFor(*plan, tokens);
    if (pages + needed > limits.num_blocks ||
        group.size() == static_cast<size_t>(limits.max_num_seqs))
      run();
    group.push_back({i + 1, *plan, arms[i].is_oracle});
    pages += needed;
  }
  run();
  return outcomes;
}

void Laboratory::Impl::RunGroup(const Trial& trial, std::span<PlannedArm> group,
                                std::vector<Outcome>* outcomes) {
  EngineDriver driver(engine.get(), 1);
  Prefill(trial, group, &driver);
  for (const PlannedArm& arm : group) {
    Outcome& outcome = (*outcomes)[arm.outcome];
    outcome = AfterPrefill(arm, &driver);
    if (trial.traced && !arm.plan.rule.weighted) outcome.held.push_back(Held(arm.slot));
  }
  TeacherForce(trial, group, &driver, outcomes);
  Generate(trial, group, &driver, outcomes);
}

// Computes the context once for all arms, with a probe after it if any arm needs one; and once
// more, with its continuation, for the oracles.
void Laboratory::Impl::Prefill(const Trial& trial, std::span<PlannedArm> group,
                               EngineDriver* driver) const {
  const auto context_end = trial.tokens.begin() + trial.context;
  const int more = static_cast<int>(trial.tokens.size()) - trial.context + trial.generate;
  std::vector<TokenId> plain(trial.tokens.begin(), context_end);
  for (const bool oracles : {false, true}) {
    std::vector<PlannedArm*> readers;
    for (PlannedArm& arm : group) {
      if (arm.is_oracle == oracles) readers.push_back(&arm);
    }
    if (readers.empty()) continue;
    // The arm with the longest prefill leads.
    const auto leader = std::find_if(readers.begin(), readers.end(),
                                     [](const PlannedArm* arm) { return arm->plan.ReadsProbe(); });
    std::vector<TokenId> reading = plain;
    if (leader != readers.end()) {
      std::iter_swap(readers.begin(), leader);
      if (oracles) {
        reading = trial.tokens;
        reading.insert(reading.end(), trial.expected.begin(), trial.expected.end());
      } else {
        reading.insert(reading.end(), instruction.begin(), instruction.end());
        reading.insert(reading.end(), plain.begin(), plain.end());
      }
    }
    readers[0]->slot = driver->Add(std::move(reading), readers[0]->plan, more);
    for (size_t i = 1; i < readers.size(); ++i)
      readers[i]->slot = driver->AddSharing(readers[0]->slot, readers[i]->plan, more);
    driver->PrefillAll(readers[0]->slot);
  }
  driver->Step();
}

Outcome Laboratory::Impl::AfterPrefill(const PlannedArm& arm, EngineDriver* driver) const {
  Outcome outcome;
  outcome.kept = EngineProbe(*engine).ReadLengths(arm.slot);
  for (const int32_t entries : outcome.kept) outcome.entries += entries;
  const std::vector<float>& masses = driver->RetainedMass(arm.slot);
  double sum = 0;
  for (const float mass : masses) sum += mass;
  if (!masses.empty()) outcome.retained_mass = sum / static_cast<double>(masses.size());
  return outcome;
}

std::vector<std::vector<int32_t>> Laboratory::Impl::Held(int slot) const {
  const EngineLimits& limits = engine->limits();
  std::vector<std::vector<int32_t>> held;
  for (int layer = 0; layer < limits.num_layers; ++layer) {
    for (int head = 0; head < limits.num_kv_heads; ++head) {
      held.push_back(EngineProbe(*engine).ReadPositions(slot, layer, head));
      std::sort(held.back().begin(), held.back().end());
    }
  }
  return held;
}

// Feeds the tokens after the context, the same to all arms.
void Laboratory::Impl::TeacherForce(const Trial& trial, std::span<PlannedArm> group,
                                    EngineDriver* driver, std::vector<Outcome>* outcomes) const {
  const int end = static_cast<int>(trial.tokens.size());
  const double given = std::max(1, end - trial.context);
  for (int position = trial.context; position < end; ++position) {
    const TokenId token = trial.tokens[position];
    const std::span<const float> full = driver->LogitsRow(group[0].slot);
    const size_t best = Best(full);
    for (const PlannedArm& arm : group) {
      const std::span<const float> logits = driver->LogitsRow(arm.slot);
      Outcome& outcome = (*outcomes)[arm.outcome];
      outcome.nll += (LogSum(logits) - logits[token]) / given;
      outcome.agreement += Best(logits) == best ? 1.0 : 0.0;
      if (arm.slot != group[0].slot) outcome.divergence += Divergence(full, logits) / given;
      driver->DecodeToken(arm.slot, token, position);
    }
    driver->Step();
    for (const PlannedArm& arm : group) {
      Outcome& outcome = (*outcomes)[arm.outcome];
      if (!outcome.held.empty() && arm.plan.cap != kNoCap) outcome.held.push_back(Held(arm.slot));
    }
  }
  for (const PlannedArm& arm : group) (*outcomes)[arm.outcome].agreement /= given;
}

void Laboratory::Impl::Generate(const Trial& trial, std::span<PlannedArm> group,
                                EngineDriver* driver, std::vector<Outcome>* outcomes) const {
  for (int i = 0; i < trial.generate; ++i) {
    for (const PlannedArm& arm : group) {
      const TokenId token = driver->last_token(arm.slot);
      (*outcomes)[arm.outcome].text += tokenizer->TokenBytes(token, true, false);
      if (i + 1 < trial.generate) driver->Decode(arm.slot);
    }
    if (i + 1 < trial.generate) driver->Step();
  }
}

}  // namespace hydrant::eval
