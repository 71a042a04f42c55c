#include "tools/eval/laboratory.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/cache/kv_cache_manager.h"
#include "engine/cache/prompt_scorer.h"
#include "engine/model/model_source.h"
#include "engine/run/engine_probe.h"
#include "engine/run/forward/score_predictor.h"
#include "engine/run/model_fingerprint.h"
#include "kernels/status_macros.h"
#include "tools/eval/dialogue.h"
#include "tools/eval/engine_driver.h"
#include "tools/eval/ideas.h"

namespace hydrant::eval {
namespace {

// Scores by the attention of the queries after the prompt, which a policy cannot know.
class ContinuationScorer final : public PromptScorer {
 public:
  bool ReadsProbe() const override { return true; }
  std::vector<ColumnStatistic> Statistics(const CachePlan& plan, int /*read*/) const override {
    return {{.first_query = static_cast<int32_t>(plan.prompt.tokens)}};
  }
  const float* Score(const PromptLayer& layer) const override { return layer.statistics[0]; }
};

// The text that a cache is chosen by, read behind the context. Arms that need none share the prefill
// of kRepetition.
enum class Probe { kRepetition, kQuestions, kContinuation };

Probe ProbeOf(const Arm& arm) {
  const IdeaInfo* const idea = FindIdea(arm.idea);
  if (idea != nullptr && idea->idea == Idea::kQuestions) return Probe::kQuestions;
  return arm.is_oracle ? Probe::kContinuation : Probe::kRepetition;
}

// An arm of a trial with its plan from PlanCache.
struct PlannedArm {
  size_t outcome = 0;  // index in the result
  CachePlan plan;
  CacheSpec spec;
  Probe probe = Probe::kRepetition;
  int recall_tokens = 0;
  int slot = -1;
};

// All dialogues with their right answers, one after the other.
std::vector<TokenId> Continuation(const Trial& trial) {
  std::vector<TokenId> all;
  for (const Dialogue& dialogue : trial.dialogues) {
    for (const Exchange& exchange : dialogue) {
      for (const auto* part : {&exchange.read, &exchange.foreseen, &exchange.expected})
        all.insert(all.end(), part->begin(), part->end());
    }
  }
  return all;
}

}  // namespace

struct Laboratory::Impl {
  LaboratoryOptions options;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<TokenId> instruction;

  absl::StatusOr<CachePlan> PlanOf(const Arm& arm, const Trial& trial) const;
  int64_t PagesOf(const CachePlan& plan, const Trial& trial, int recall_tokens) const;
  void RunGroup(const Trial& trial, std::span<PlannedArm> group, std::vector<Outcome>* outcomes);
  std::vector<TokenId> ReadBehind(const Trial& trial, Probe probe) const;
  void Prefill(const Trial& trial, std::span<PlannedArm> group, EngineDriver* driver) const;
  Outcome AfterPrefill(const Trial& trial, const PlannedArm& arm, EngineDriver* driver) const;
  void Talk(const Trial& trial, std::span<const PlannedArm> group, EngineDriver* driver,
            std::vector<Outcome>* outcomes) const;
  std::vector<std::vector<int32_t>> Held(int slot) const;
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
  HYDRANT_ASSIGN_OR_RETURN(const Sha256Digest fingerprint,
                           ModelFingerprint(*source, *impl->tokenizer));
  HYDRANT_ASSIGN_OR_RETURN(
      engine.score_predictor,
      FindScorePredictor(options.score_predictor, model, source->config(), HexOf(fingerprint)));
  engine.max_num_seqs = 2 * (options.max_arms + 1);  // each may be forked for a dialogue
  engine.max_shared_statistics = 3 * (options.max_arms + 1);
  // Room for a prefill with each probe.
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
uint32_t Laboratory::score_predictor() const { return impl_->engine->limits().score_predictor; }
std::string Laboratory::Description() const { return impl_->engine->Description(); }

std::vector<TokenId> Laboratory::Encode(std::string_view text) const {
  auto ids =
      impl_->tokenizer->Encode(text, {.add_special_tokens = false, .parse_special_tokens = false});
  return ids.ok() ? *std::move(ids) : std::vector<TokenId>();
}

absl::StatusOr<CachePlan> Laboratory::Impl::PlanOf(const Arm& arm, const Trial& trial) const {
  const EngineLimits& limits = engine->limits();
  const auto context = static_cast<int>(trial.context.size());
  CacheSpec spec = arm.cache;
  if (arm.is_oracle) {
    spec.policy = "reconstruct";
    spec.params.try_emplace("budget_scope", "head");
  }
  const bool fits_two_passes =
      2 * context + static_cast<int>(instruction.size()) <= limits.max_model_len;
  PromptShape prompt = limits.ShapeOf(context);
  prompt.question_later = trial.question_later;
  prompt.fits_two_passes = fits_two_passes;
  prompt.goes_on = !trial.dialogues.empty();
  absl::StatusOr<CachePlan> plan = PlanCache(spec, prompt);
  if (!plan.ok()) return plan;
  if (plan->rule.rolling && limits.centred_keys)
    return absl::InvalidArgumentError("rolling keys do not go with this model's keys in int4");
  if (arm.is_oracle) plan->scorer = std::make_shared<ContinuationScorer>();
  if (const IdeaInfo* idea = FindIdea(arm.idea); idea != nullptr && plan->Compresses())
    plan->scorer = ChangedScorer(idea->idea, plan->scorer, StructureOf(trial.context, *tokenizer));
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

// An upper bound of the pages of an arm, and of a fork of it.
int64_t Laboratory::Impl::PagesOf(const CachePlan& plan, const Trial& trial,
                                  int recall_tokens) const {
  const auto tokens =
      static_cast<int64_t>(trial.context.size()) + LongestDialogue(trial.dialogues, recall_tokens);
  const int64_t pages = KvCacheManager::PagesFor(engine->limits(), plan, tokens);
  return trial.dialogues.size() > 1 ? 2 * pages : pages;
}

std::vector<Outcome> Laboratory::Run(const Trial& trial, const std::vector<Arm>& arms) {
  std::vector<Outcome> outcomes(arms.size() + 1);
  std::vector<PlannedArm> group = {{0, *impl_->PlanOf({}, trial), {}}};
  const int64_t of_full = impl_->PagesOf(group[0].plan, trial, 0);
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
    const int64_t needed = impl_->PagesOf(*plan, trial, arms[i].recall_tokens);
    if (pages + needed > impl_->engine->limits().num_blocks ||
        group.size() > static_cast<size_t>(impl_->options.max_arms))
      run();
    group.push_back({i + 1, *plan, arms[i].cache, ProbeOf(arms[i]), arms[i].recall_tokens});
    pages += needed;
  }
  run();
  return outcomes;
}

void Laboratory::Impl::RunGroup(const Trial& trial, std::span<PlannedArm> group,
                                std::vector<Outcome>* outcomes) {
  EngineDriver driver(engine.get(), 1);
  Prefill(trial, group, &driver);
  for (PlannedArm& arm : group) {
    arm.plan = driver.Plan(arm.slot);  // decided
    Outcome& outcome = (*outcomes)[arm.outcome];
    outcome = AfterPrefill(trial, arm, &driver);
    if (trial.traced && !arm.plan.rule.weighted) outcome.held.push_back(Held(arm.slot));
  }
  Talk(trial, group, &driver, outcomes);
}

std::vector<TokenId> Laboratory::Impl::ReadBehind(const Trial& trial, Probe probe) const {
  if (probe == Probe::kContinuation) return Continuation(trial);
  std::vector<TokenId> read = instruction;
  const std::vector<TokenId> text =
      probe == Probe::kQuestions ? GuessedQuestions(trial.context, *tokenizer) : trial.context;
  read.insert(read.end(), text.begin(), text.end());
  return read;
}

// Computes the context once for all arms of a probe, with the probe after it if any arm reads it.
void Laboratory::Impl::Prefill(const Trial& trial, std::span<PlannedArm> group,
                               EngineDriver* driver) const {
  int more = 0;
  for (const PlannedArm& arm : group)
    more = std::max(more, LongestDialogue(trial.dialogues, arm.recall_tokens));
  for (const Probe probe : {Probe::kRepetition, Probe::kQuestions, Probe::kContinuation}) {
    std::vector<PlannedArm*> readers;
    for (PlannedArm& arm : group) {
      if (arm.probe == probe) readers.push_back(&arm);
    }
    if (readers.empty()) continue;
    // The arm with the longest prefill leads.
    const auto leader = std::find_if(readers.begin(), readers.end(),
                                     [](const PlannedArm* arm) { return arm->plan.ReadsProbe(); });
    std::vector<TokenId> reading = trial.context;
    if (leader != readers.end()) {
      std::iter_swap(readers.begin(), leader);
      const std::vector<TokenId> behind = ReadBehind(trial, probe);
      reading.insert(reading.end(), behind.begin(), behind.end());
    }
    readers[0]->slot = driver->Add(std::move(reading), readers[0]->plan, more);
    for (size_t i = 1; i < readers.size(); ++i)
      readers[i]->slot = driver->AddSharing(readers[0]->slot, readers[i]->plan, more);
    driver->PrefillAll(readers[0]->slot);
  }
  driver->Step();
}

Outcome Laboratory::Impl::AfterPrefill(const Trial& trial, const PlannedArm& arm,
                                       EngineDriver* driver) const {
  Outcome outcome;
  outcome.kept = EngineProbe(*engine).ReadLengths(arm.slot);
  // The positions of a rolling cache are ranks.
  if (!arm.plan.rule.rolling)
    outcome.kept_entries =
        EngineProbe(*engine).ReadKeptEntries(arm.slot, static_cast<int>(trial.context.size()));
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

void Laboratory::Impl::Talk(const Trial& trial, std::span<const PlannedArm> group,
                            EngineDriver* driver, std::vector<Outcome>* outcomes) const {
  const bool forks = trial.dialogues.size() > 1;
  const auto trace = [&] {
    for (const PlannedArm& arm : group) {
      Outcome& outcome = (*outcomes)[arm.outcome];
      if (!outcome.held.empty() && arm.plan.cap != kNoCap) outcome.held.push_back(Held(arm.slot));
    }
  };
  DialogueRunner runner(driver, tokenizer.get(), engine->limits().prefill_arena_tokens,
                        trial.traced ? std::function<void()>(trace) : nullptr);
  for (const Dialogue& dialogue : trial.dialogues) {
    std::vector<Speaker> speakers;
    for (const PlannedArm& arm : group) {
      Speaker& speaker = speakers.emplace_back();
      speaker.plan = arm.plan;
      speaker.spec = arm.spec;
      speaker.slot =
          forks ? driver->Fork(arm.slot, TokensOf(dialogue, arm.recall_tokens)) : arm.slot;
      speaker.recall_tokens = arm.recall_tokens;
      speaker.seen = trial.context;
      if (forks) continue;
      const std::span<const float> logits = driver->LogitsRow(arm.slot);
      speaker.logits.assign(logits.begin(), logits.end());
    }
    runner.Run(dialogue, speakers);
    for (size_t i = 0; i < group.size(); ++i) {
      (*outcomes)[group[i].outcome].answers.push_back(std::move(speakers[i].answers));
      if (forks) driver->Release(speakers[i].slot);
    }
  }
}

}  // namespace hydrant::eval
