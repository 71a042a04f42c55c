#include "scheduler/request_check.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/cache/kv_cache_manager.h"
#include "engine/cache/prompt_scorer.h"
#include "engine/text/grammar/grammar_compiler.h"
#include "kernels/status_macros.h"
#include "scheduler/context.h"
#include "scheduler/output_processor.h"

namespace hydrant {

namespace {

// Also true for NaN.
template <typename T>
bool Outside(T value, T low, T high) {
  return !(value >= low && value <= high);
}

template <typename T>
absl::Status OutsideError(const std::string& field, T value, const std::string& range) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is outside ", range));
}

}  // namespace

absl::Status CheckSampling(const SamplingParams& sampling) {
  if (Outside(sampling.temperature, 0.0, 100.0)) {
    return OutsideError("sampling.temperature", sampling.temperature, "[0, 100]");
  }
  if (!(sampling.top_p > 0.0 && sampling.top_p <= 1.0)) {
    return OutsideError("sampling.top_p", sampling.top_p, "(0, 1]");
  }
  if (Outside(sampling.min_p, 0.0, 1.0)) {
    return OutsideError("sampling.min_p", sampling.min_p, "[0, 1]");
  }
  // Below 1e-3 a logit would exceed the resolution of fp32.
  if (Outside(sampling.repetition_penalty, 1e-3, 10.0)) {
    return OutsideError("sampling.repetition_penalty", sampling.repetition_penalty, "[0.001, 10]");
  }
  if (Outside(sampling.presence_penalty, -2.0, 2.0)) {
    return OutsideError("sampling.presence_penalty", sampling.presence_penalty, "[-2, 2]");
  }
  if (Outside(sampling.frequency_penalty, -2.0, 2.0)) {
    return OutsideError("sampling.frequency_penalty", sampling.frequency_penalty, "[-2, 2]");
  }
  if (sampling.top_k < -1) {
    return OutsideError("sampling.top_k", sampling.top_k, "[-1, 2147483647] (0 or -1: all)");
  }
  return absl::OkStatus();
}

namespace {

absl::Status CheckBiases(const std::map<TokenId, double>& biases, TokenId vocab) {
  if (biases.size() > kMaxBiases) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.logit_bias: ", biases.size(),
                                                   " tokens exceed the limit of ", kMaxBiases));
  }
  for (const auto& [token, bias] : biases) {
    if (token >= vocab) {
      return OutsideError("sampling.logit_bias", absl::StrCat("token ", token),
                          absl::StrCat("[0, ", vocab, ")"));
    }
    if (Outside(bias, -100.0, 100.0)) {
      return OutsideError(absl::StrCat("sampling.logit_bias[", token, "]"), bias, "[-100, 100]");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBadWords(const std::vector<std::vector<TokenId>>& words) {
  if (words.size() > kMaxBadWords) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.bad_words: ", words.size(),
                                                   " sequences of tokens exceed the limit of ",
                                                   kMaxBadWords));
  }
  for (const std::vector<TokenId>& word : words) {
    if (Outside<size_t>(word.size(), 1, kMaxBadWordTokens)) {
      return OutsideError("sampling.bad_words", absl::StrCat("a word of ", word.size(), " tokens"),
                          absl::StrCat("[1, ", kMaxBadWordTokens, "] tokens"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const std::string& field, const std::vector<TokenId>& ids, TokenId vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab) {
      return OutsideError(absl::StrCat(field, "[", i, "]"), ids[i],
                          absl::StrCat("[0, ", vocab, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTokensOf(const SamplingParams& sampling, TokenId vocab) {
  HYDRANT_RETURN_IF_ERROR(CheckBiases(sampling.logit_bias, vocab));
  HYDRANT_RETURN_IF_ERROR(CheckBadWords(sampling.bad_words));
  return CheckIds("sampling.allowed_token_ids", sampling.allowed_token_ids, vocab);
}

// Prompt logprobs need a prefill of all prompt tokens, without cached or resumed ones.
absl::Status CheckPromptLogprobs(const Request& request) {
  if (!request.sampling.prompt_logprobs) return absl::OkStatus();
  const auto does_not_go = [](const char* with) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.prompt_logprobs: does not go with ", with));
  };
  if (request.from != nullptr) return does_not_go("a context, whose tokens are not read");
  if (request.question_tokens > 0)
    return does_not_go("a question, which sees what is left of the prompt");
  if (!request.resume_token_ids.empty()) return does_not_go("resume_token_ids");
  return absl::OkStatus();
}

// A grammar determines the end of the text.
absl::Status CheckGrammar(const Request& request) {
  if (request.sampling.grammar == nullptr) return absl::OkStatus();
  if (request.stopping.ignore_eos) {
    return absl::InvalidArgumentError(
        "stopping.ignore_eos: does not go with structured_output, which ends with the text");
  }
  const std::unique_ptr<TokenConstraint> constraint = request.sampling.grammar->NewConstraint();
  for (size_t i = 0; i < request.resume_token_ids.size(); ++i) {
    if (constraint->Accept(request.resume_token_ids[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("resume_token_ids[", i, "]: ", request.resume_token_ids[i],
                     " may not follow by structured_output; send what the stream had delivered"));
  }
  return absl::OkStatus();
}

absl::Status CheckStopStrings(const std::vector<std::string>& stop) {
  if (stop.size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stopping.stop: ", stop.size(), " strings exceed the limit of ", kMaxStopStrings));
  }
  for (size_t i = 0; i < stop.size(); ++i) {
    if (stop[i].empty() || stop[i].size() > kMaxStopStringBytes) {
      return OutsideError(absl::StrCat("stopping.stop[", i, "]"),
                          absl::StrCat("length ", stop[i].size()),
                          absl::StrCat("[1, ", kMaxStopStringBytes, "] bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStopping(const StoppingParams& stopping, TokenId vocab) {
  constexpr int64_t kLimit = std::numeric_limits<uint32_t>::max();  // maximum of the wire type
  if (stopping.max_tokens.has_value() && Outside<int64_t>(*stopping.max_tokens, 1, kLimit)) {
    return OutsideError("stopping.max_tokens", *stopping.max_tokens,
                        absl::StrCat("[1, ", kLimit, "]"));
  }
  const int64_t most = stopping.max_tokens.value_or(kLimit);
  if (Outside<int64_t>(stopping.min_tokens, 0, most)) {
    return OutsideError("stopping.min_tokens", stopping.min_tokens,
                        absl::StrCat("[0, ", most, "]"));
  }
  if (stopping.stop_token_ids.size() > kMaxStopTokenIds) {
    return absl::InvalidArgumentError(
        absl::StrCat("stopping.stop_token_ids: ", stopping.stop_token_ids.size(),
                     " ids exceed the limit of ", kMaxStopTokenIds));
  }
  HYDRANT_RETURN_IF_ERROR(CheckStopStrings(stopping.stop));
  return CheckIds("stopping.stop_token_ids", stopping.stop_token_ids, vocab);
}

absl::Status CheckTokens(const Request& request, const EngineLimits& limits, TokenId vocab) {
  if (request.prompt.empty())
    return absl::InvalidArgumentError("prompt: 0 tokens, at least 1 is needed");
  const int64_t longest = std::min(limits.max_model_len - 1, limits.prefill_arena_tokens);
  if (static_cast<int64_t>(request.prompt.size()) > longest) {
    return absl::InvalidArgumentError(
        limits.max_model_len - 1 <= limits.prefill_arena_tokens
            ? absl::StrCat("prompt: ", request.prompt.size(), " tokens exceed max_model_len ",
                           limits.max_model_len, " - 1")
            : absl::StrCat("prompt: ", request.prompt.size(),
                           " tokens exceed the prefill arena of ", limits.prefill_arena_tokens));
  }
  const auto longest_question = static_cast<int64_t>(request.prompt.size()) - 1;
  if (Outside<int64_t>(request.question_tokens, 0, longest_question)) {
    return OutsideError("cache.question_tokens", request.question_tokens,
                        absl::StrCat("[0, ", longest_question, "], the prompt's tokens but one"));
  }
  HYDRANT_RETURN_IF_ERROR(CheckIds("prompt", request.prompt, vocab));
  return CheckIds("resume_token_ids", request.resume_token_ids, vocab);
}

absl::Status CheckResume(const Request& request, int64_t max_total_tokens,
                         const Tokenizer& tokenizer) {
  if (request.resume_token_ids.empty()) return absl::OkStatus();
  const int64_t room = max_total_tokens - static_cast<int64_t>(request.prompt.size());
  const auto resumed = static_cast<int64_t>(request.resume_token_ids.size());
  if (resumed >= room) {
    return absl::InvalidArgumentError(absl::StrCat("resume_token_ids: ", resumed,
                                                   " tokens leave nothing of the ", room,
                                                   " that the request may generate"));
  }
  OutputProcessor output(&tokenizer, request.stopping, request.skip_special_tokens);
  for (size_t i = 0; i < request.resume_token_ids.size(); ++i) {
    if (output.Push(request.resume_token_ids[i]).ends) {
      return absl::InvalidArgumentError(
          absl::StrCat("resume_token_ids[", i, "]: the text had already ended here"));
    }
  }
  return absl::OkStatus();
}

// C as requested, if it exceeds the plan's range.
int64_t RequestedBudget(const CacheSpec& cache, const CachePlan& plan) {
  if (plan.cap != kNoCap) return plan.cap;
  const int64_t floor = cache.min_cache_tokens.value_or(0);
  return cache.cache_ratio && floor >= kNoCap
             ? std::min(floor, cache.max_cache_tokens.value_or(floor))
             : cache.max_cache_tokens.value_or(kNoCap);
}

// The engine has angles for max_model_len positions.
absl::Status CheckRolling(const CacheSpec& cache, const CachePlan& plan,
                          const EngineLimits& limits) {
  if (!plan.rule.rolling) return absl::OkStatus();
  if (limits.learned_positions) {
    return absl::InvalidArgumentError(
        "cache.params.rolling: the model adds learned positions to its tokens, which cannot be "
        "counted within the cache; leave it out");
  }
  if (limits.centred_keys) {
    return absl::InvalidArgumentError(
        "cache.params.rolling: int4 pages hold this model's keys without the part that its biases "
        "add, and cannot rotate them again; leave it out, or serve with another --kv-cache-dtype");
  }
  if (plan.cap <= limits.max_model_len) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cache.params.rolling: a budget of ", RequestedBudget(cache, plan),
                   " entries a head exceeds max_model_len ", limits.max_model_len));
}

// The length limit, or NEVER_FITS. The last token of a sequence is never fed back, so its cache
// sees one token less.
absl::StatusOr<int64_t> MaxTotalTokens(const Request& request, const CachePlan& plan,
                                       const EngineLimits& limits) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t alone = KvCacheManager::MaxTokensAlone(limits, plan);
  int64_t total = limits.max_model_len;
  if (request.stopping.max_tokens.has_value()) {
    // Positions have 32 bits.
    if (plan.rule.rolling) total = std::numeric_limits<int32_t>::max();
    total = std::min<int64_t>(total, prompt + *request.stopping.max_tokens);
  } else if (alone < total - 1) {
    total = std::max(alone, prompt) + 1;
  }
  if (total - 1 <= alone) return total;
  return absl::ResourceExhaustedError(absl::StrCat(
      "prompt: ", prompt, " tokens",
      request.stopping.max_tokens.has_value() ? " and max_tokens " : "",
      request.stopping.max_tokens.has_value() ? absl::StrCat(*request.stopping.max_tokens) : "",
      " need a cache of ", total - 1, " tokens, the whole pool holds ", alone,
      ": lower max_tokens or the cache budget"));
}

absl::StatusOr<std::vector<TokenId>> ProbeInstruction(const Tokenizer& tokenizer) {
  return tokenizer.Encode(kProbeInstruction,
                          {.add_special_tokens = false, .parse_special_tokens = false});
}

// The longest prompt that can be prefilled twice with an instruction of `instruction`
// tokens between.
int64_t MaxTokensOfTwoPasses(size_t instruction, const EngineLimits& limits) {
  const int64_t most = std::min(limits.max_model_len, limits.prefill_arena_tokens);
  return (most - static_cast<int64_t>(instruction)) / 2;
}

bool FitsTwoPasses(int64_t tokens, const EngineLimits& limits, const Tokenizer& tokenizer) {
  const absl::StatusOr<std::vector<TokenId>> instruction = ProbeInstruction(tokenizer);
  return instruction.ok() && tokens <= MaxTokensOfTwoPasses(instruction->size(), limits);
}

absl::StatusOr<std::vector<TokenId>> Probe(const std::vector<TokenId>& prompt,
                                           const CachePlan& plan, const EngineLimits& limits,
                                           const Tokenizer& tokenizer) {
  if (!plan.ReadsProbe()) return std::vector<TokenId>();
  HYDRANT_ASSIGN_OR_RETURN(std::vector<TokenId> probe, ProbeInstruction(tokenizer));
  const int64_t longest = MaxTokensOfTwoPasses(probe.size(), limits);
  if (plan.prompt.tokens > longest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cache.cache_policy: ", plan.prompt.tokens, " prompt tokens, an instruction of ",
        probe.size(), " and their repetition exceed the context of ",
        std::min(limits.max_model_len, limits.prefill_arena_tokens), "; prompts of up to ", longest,
        " tokens can be scored by a probe"));
  }
  probe.insert(probe.end(), prompt.begin(), prompt.begin() + plan.prompt.tokens);
  return probe;
}

// No keys without a prefix cache.
std::vector<PrefixKey> KeysOf(const Request& request, const CachePlan& plan,
                              const EngineLimits& limits) {
  if (!request.prefix_caching || limits.num_prefix_blocks == 0) return {};
  return PrefixKeys(std::span(request.prompt).first(plan.prompt.tokens), request.cache_salt);
}

absl::Status CheckEviction(const Request& request, const CachePlan& plan) {
  if (request.on_pressure != OnPressure::kEvict) return absl::OkStatus();
  const std::string evict = "scheduling.on_pressure: ON_PRESSURE_EVICT ";
  if (request.from != nullptr || !request.keep_as.handle.empty())
    return absl::InvalidArgumentError(evict + "goes neither with a context nor with keep");
  if (request.cache.min_retained_mass.has_value())
    return absl::InvalidArgumentError(evict + "does not go with min_retained_mass, a promise");
  if (CanShrink(plan)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(evict, "needs entries that are ranked at every token, and may leave at any; \"",
                   request.cache.policy, "\" as asked for has none. auto has"));
}

// All pages up to the cache's maximum size are reserved, so an unbounded cache requires an
// explicit max_tokens.
absl::Status CheckGuarantee(const Request& request, const CachePlan& largest,
                            const EngineLimits& limits) {
  const bool is_bounded = request.stopping.max_tokens.has_value() || largest.cap != kNoCap ||
                          limits.BudgetLayers() == 0;
  if (request.on_pressure != OnPressure::kNever || is_bounded) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "stopping.max_tokens: unset, but scheduling.on_pressure ON_PRESSURE_NEVER promises the "
      "request all pages that it may come to hold, and \"",
      request.cache.policy, "\" as asked for grows with every token, up to max_model_len ",
      limits.max_model_len, "; set max_tokens, or a cache that has a cap"));
}

// The budget of a request that continues a context with another turn that is prefilled at once.
std::optional<AppendBudget> AppendBudgetOf(const Request& request) {
  if (request.from == nullptr) return std::nullopt;
  const CachePlan& plan = request.from->plan;
  const TokenRange turn = {static_cast<int32_t>(request.from->num_seen),
                           static_cast<int32_t>(request.prompt.size())};
  if (!plan.AppendsRuns() || turn.end - turn.begin < 2 || !RaisesBudget(turn, plan))
    return std::nullopt;
  return BudgetAfterAppend(plan, request.cache, turn.end);
}

// The plan of a request without a context, with its probe.
absl::StatusOr<PromptPlan> PlanRequest(const CacheSpec& spec, const Request& request,
                                       const CachePlan& open, const EngineLimits& limits,
                                       const Tokenizer& tokenizer) {
  PromptPlan planned = {.spec = spec, .plan = Resolve(open, ResolveInputs())};
  HYDRANT_ASSIGN_OR_RETURN(planned.probe, Probe(request.prompt, planned.plan, limits, tokenizer));
  HYDRANT_RETURN_IF_ERROR(CheckRolling(spec, planned.plan, limits));
  return planned;
}

bool MayUseFallback(const Request& request) {
  return request.cache.policy == "full" && !request.cache.min_retained_mass.has_value() &&
         request.from == nullptr && request.keep_as.handle.empty() && !request.prefill_only &&
         request.resume_token_ids.empty() && request.pooling == EmbeddingPooling::kNone &&
         request.on_pressure != OnPressure::kNever;
}

// `whole`: the plan of the full cache, for a request of up to max_total_tokens.
std::shared_ptr<const PromptPlan> PlanFallback(const CacheSpec& spec, const Request& request,
                                               const CachePlan& whole, int64_t max_total_tokens,
                                               const EngineLimits& limits,
                                               const Tokenizer& tokenizer) {
  if (spec.policy == "full" || !MayUseFallback(request)) return nullptr;
  const absl::StatusOr<CachePlan> open = PlanCache(spec, whole.prompt);
  if (!open.ok()) return nullptr;
  absl::StatusOr<PromptPlan> planned = PlanRequest(spec, request, *open, limits, tokenizer);
  const int64_t last = max_total_tokens - 1;
  if (!planned.ok() || !KvCacheManager::FitsAlone(limits, planned->plan, last)) return nullptr;
  if (KvCacheManager::PagesFor(limits, planned->plan, last) >=
      KvCacheManager::PagesFor(limits, whole, last))
    return nullptr;
  return std::make_shared<const PromptPlan>(*std::move(planned));
}

Failed Invalid(absl::Status status) { return {.status = std::move(status), .reason = "INVALID"}; }

}  // namespace

absl::Status CheckSalt(const std::string& salt) {
  if (salt.size() <= kMaxCacheSaltBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "cache.cache_salt: ", salt.size(), " bytes exceed the limit of ", kMaxCacheSaltBytes));
}

std::optional<int32_t> CheckedRequest::CacheTokens() const {
  if (append_budget.has_value()) return append_budget;
  const std::optional<PageCompaction> compaction =
      plan.retention->PromptCompaction(plan, plan.prompt.num_layers);
  const bool decided_later = plan.resolve_at == ResolveAt::kAdmission ||
                             (compaction.has_value() && compaction->min_retained_mass > 0.0f);
  if (decided_later || plan.budget == kNoCap) return std::nullopt;
  return plan.budget;
}

std::variant<CheckedRequest, Failed> CheckRequest(Request request, const EngineLimits& limits,
                                                  const Tokenizer& tokenizer,
                                                  const CacheSpec& fallback_policy) {
  const TokenId vocab = tokenizer.VocabSize();
  absl::Status status = CheckTokens(request, limits, vocab);
  if (status.ok()) status = CheckSampling(request.sampling);
  if (status.ok()) status = CheckTokensOf(request.sampling, vocab);
  if (status.ok()) status = CheckStopping(request.stopping, vocab);
  if (status.ok()) status = CheckPromptLogprobs(request);
  if (status.ok()) status = CheckGrammar(request);
  // With an owner, the salt was checked before the owner's prefix was added.
  if (status.ok() && request.owner.empty()) status = CheckSalt(request.cache_salt);
  if (!status.ok()) return Invalid(std::move(status));
  request.cache.evictable = request.on_pressure == OnPressure::kEvict;
  PromptShape prompt =
      limits.ShapeOf(static_cast<int64_t>(request.prompt.size()) - request.question_tokens);
  prompt.question_tokens = request.question_tokens;
  prompt.question_later = request.prefill_only;
  prompt.goes_on = !request.keep_as.handle.empty();
  prompt.fits_two_passes =
      prompt.HasLaterQuestion() && FitsTwoPasses(prompt.tokens, limits, tokenizer);
  const absl::StatusOr<CachePlan> open =
      request.from != nullptr ? request.from->first_plan : PlanCache(request.cache, prompt);
  if (!open.ok()) return Invalid(open.status());
  absl::StatusOr<PromptPlan> planned =
      PlanRequest(request.cache, request, *open, limits, tokenizer);
  if (!planned.ok()) return Invalid(planned.status());
  const CachePlan& plan = planned->plan;
  status = CheckEviction(request, plan);
  if (status.ok() && request.report_kept_entries && plan.rule.rolling) {
    status = absl::InvalidArgumentError(
        "output.kept_entries: does not go with a rolling cache, whose entries have no positions");
  }
  if (!status.ok()) return Invalid(std::move(status));
  const std::optional<AppendBudget> append = AppendBudgetOf(request);
  CachePlan largest = plan;  // the plan at its largest
  if (request.from != nullptr) largest.cap = request.from->plan.cap;
  if (append.has_value()) largest.cap = append->cap;
  status = CheckGuarantee(request, largest, limits);
  if (!status.ok()) return Invalid(std::move(status));
  const absl::StatusOr<int64_t> total = MaxTotalTokens(request, largest, limits);
  if (!total.ok()) return Failed{.status = total.status(), .reason = "NEVER_FITS"};
  status = CheckResume(request, *total, tokenizer);
  if (!status.ok()) return Invalid(std::move(status));
  std::vector<PrefixKey> keys = KeysOf(request, plan, limits);
  auto other = PlanFallback(fallback_policy, request, plan, *total, limits, tokenizer);
  return CheckedRequest{.request = std::move(request),
                        .plan = std::move(planned->plan),
                        .probe = std::move(planned->probe),
                        .prefix_keys = std::move(keys),
                        .max_total_tokens = *total,
                        .largest_cap = largest.cap,
                        .append_budget = append.has_value() ? append->Mean() : std::nullopt,
                        .fallback_plan = std::move(other)};
}

absl::Status CheckPolicyUnderPressure(const CacheSpec& spec, const EngineLimits& limits) {
  if (spec.policy == "full") return absl::OkStatus();
  if (limits.BudgetLayers() == 0) {
    return absl::InvalidArgumentError(
        "policy_under_pressure: every layer of the model has a window, and there is nothing that a "
        "policy could compress");
  }
  const absl::StatusOr<CachePlan> plan = PlanCache(spec, limits.ShapeOf(limits.max_model_len));
  const absl::Status status = plan.ok() ? CheckRolling(spec, *plan, limits) : plan.status();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat("policy_under_pressure: ", status.message()));
}

}  // namespace hydrant
