#include "tests/scheduler/engine_schedule.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/cache/policy_registry.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "scheduler/invariants.h"
#include "scheduler/request_check.h"

namespace hydrant {
namespace {

constexpr TokenId kVocab = 160;  // vocabulary of the model
constexpr size_t kMaxFaults = 10;
constexpr int kMaxSteps = 100'000;

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int Below(int n) { return static_cast<int>(random_() % n); }
  bool Percent(int percent) { return Below(100) < percent; }
  std::vector<TokenId> Tokens(int count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(Below(kVocab));
    return tokens;
  }

 private:
  std::mt19937_64 random_;
};

// Prefers co2: the compaction after its measured steps frees pages in the middle of a step.
CacheSpec DrawCache(uint64_t seed, Dice* dice) {
  const std::span<const Policy* const> policies = Policies();
  CacheSpec cache;
  cache.policy =
      seed % 4 == 0
          ? "co2"
          : std::string(policies[(seed / 4 * 3 + seed % 4 - 1) % policies.size()]->Info().name);
  if (cache.policy == "full") return cache;
  cache.max_cache_tokens = 8 + dice->Below(16);
  if (cache.policy == "co2") cache.params["measurement_steps"] = absl::StrCat(1 + dice->Below(8));
  if (cache.policy == "auto" && dice->Percent(50)) {
    cache.max_cache_tokens.reset();
    cache.min_retained_mass = 0.5 + 0.01 * dice->Below(45);
  }
  return cache;
}

// Policies that rank entries during decode, so that their caches may shrink under pressure.
bool CanShrinkLater(const CacheSpec& cache) {
  const std::set<std::string> policies = {"local",      "h2o",         "ada-h2o", "snapkv",
                                          "ada-snapkv", "ada-pyramid", "auto"};
  return policies.contains(cache.policy) && !cache.min_retained_mass.has_value();
}

Request RequestOf(const Conversation& conversation) {
  Request request;
  request.prompt = conversation.prompt;
  request.cache = conversation.cache;
  request.question_tokens = conversation.question_tokens;
  request.sampling = conversation.sampling;
  request.stopping.max_tokens = conversation.max_tokens;
  request.on_pressure = conversation.on_pressure;
  return request;
}

Request QuestionOf(const Conversation& conversation, size_t question, const std::string& context) {
  Request request;
  request.prompt = conversation.questions[question];
  request.sampling = conversation.sampling;
  request.stopping.max_tokens = conversation.max_tokens;
  request.context = context;
  return request;
}

}  // namespace

Conversation DrawConversation(uint64_t seed) {
  Dice dice(seed + 1);
  Conversation drawn;
  drawn.cache = DrawCache(seed, &dice);
  drawn.prompt = dice.Tokens(6 + dice.Below(60));
  // Some prompts share a prefix.
  if (dice.Percent(40)) {
    const std::vector<TokenId> text = Dice(dice.Below(2)).Tokens(66);
    const size_t alike = std::min<size_t>(drawn.prompt.size(), 16 + 16 * dice.Below(4));
    std::copy_n(text.begin(), alike, drawn.prompt.begin());
  }
  drawn.max_tokens = 1 + dice.Below(16);
  drawn.sampling.seed = seed;
  drawn.sampling.temperature = dice.Percent(50) ? 0.0 : 1.0;
  if (dice.Percent(20)) drawn.sampling.repetition_penalty = 1.3;
  if (dice.Percent(20)) drawn.question_tokens = 1 + dice.Below(5);
  if (dice.Percent(30)) {
    const bool evictable = CanShrinkLater(drawn.cache);
    drawn.on_pressure = evictable ? OnPressure::kEvict : OnPressure::kNever;
    if (evictable) drawn.cache.min_cache_tokens = 4;
  } else if (dice.Percent(50)) {
    for (int i = dice.Below(3); i >= 0; --i)
      drawn.questions.push_back(dice.Tokens(1 + dice.Below(12)));
  } else if (dice.Percent(30)) {
    drawn.samples = 2 + dice.Below(3);
    drawn.sampling.temperature = 1.0;
  }
  return drawn;
}

void EngineScheduleCounts::Add(const EngineScheduleCounts& other) {
  uint64_t EngineScheduleCounts::*const numbers[] = {
      &EngineScheduleCounts::requests,  &EngineScheduleCounts::compared,
      &EngineScheduleCounts::differ,    &EngineScheduleCounts::failed,
      &EngineScheduleCounts::swaps,     &EngineScheduleCounts::preemptions,
      &EngineScheduleCounts::shrinks,   &EngineScheduleCounts::cancels,
      &EngineScheduleCounts::continued, &EngineScheduleCounts::forks};
  for (const auto number : numbers) this->*number += other.*number;
  for (const auto& [policy, count] : other.compared_of) compared_of[policy] += count;
  for (const auto& [policy, count] : other.differ_of) differ_of[policy] += count;
  for (const std::string& fault : other.faults) {
    if (faults.size() < kMaxFaults) faults.push_back(fault);
  }
}

RequestHandle EngineLoop::Add(Request request) {
  const RequestHandle handle = next_handle_++;
  std::optional<Failed> failed;
  if (request.from == nullptr) failed = scheduler_.contexts().Resolve(&request);
  if (!failed.has_value()) {
    auto checked = CheckRequest(std::move(request), engine_->limits(), tokenizer_, {});
    if (auto* good = std::get_if<CheckedRequest>(&checked)) {
      streams_[handle];
      scheduler_.Add(handle, std::move(*good), now_);
      return handle;
    }
    failed = std::move(std::get<Failed>(checked));
  }
  streams_[handle].error = absl::StrCat(failed->reason, ": ", failed->status.message());
  streams_[handle].has_ended = true;
  return handle;
}

void EngineLoop::Step() {
  const Batch& batch = scheduler_.Schedule(now_);
  now_ += 1'000;
  const bool has_work = batch.HasWork();
  const int depth = engine_->limits().max_steps_in_flight;
  if (has_work) {
    engine_->Enqueue(batch);
    ++in_flight_;
  }
  if (in_flight_ > 0 && in_flight_ >= (has_work ? depth : 1)) {
    --in_flight_;
    StepResult result;
    const absl::Status status = engine_->Collect(&result);
    HYDRANT_CHECK(status.ok());
    scheduler_.Apply(result, now_);
  }
  for (Event& event : scheduler_.TakeEvents()) {
    Stream& stream = streams_.at(event.handle);
    if (auto* delta = std::get_if<Delta>(&event.what)) {
      if (delta->token_id.has_value()) stream.tokens.push_back(*delta->token_id);
      continue;
    }
    const auto* finished = std::get_if<Finished>(&event.what);
    const auto* failed = std::get_if<Failed>(&event.what);
    if (finished == nullptr && failed == nullptr) continue;
    const Usage& usage = finished != nullptr ? finished->usage : failed->usage;
    stream.has_ended = true;
    stream.shrinks = usage.shrinks;
    stream.preemptions = usage.preemptions;
    stream.swaps = usage.swaps;
    if (finished != nullptr) stream.context = finished->context;
    if (failed != nullptr)
      stream.error = absl::StrCat(failed->reason, ": ", failed->status.message());
  }
}

void EngineLoop::RunToEnd() {
  for (int i = 0; !scheduler_.Empty() || in_flight_ > 0; ++i) {
    HYDRANT_CHECK(i < kMaxSteps);
    Step();
  }
}

AnswersAlone::AnswersAlone(StepExecutor* engine, int num_conversations) : engine_(engine) {
  for (int i = 0; i < num_conversations; ++i) conversations_.push_back(DrawConversation(i));
  answers_.resize(num_conversations);
}

const Answers& AnswersAlone::answers(int i) {
  Answers& answers = answers_[i];
  if (!answers.empty()) return answers;
  const Conversation& conversation = conversations_[i];
  EngineLoop loop(engine_, {});
  const auto run = [&](Request request) {
    const RequestHandle handle = loop.Add(std::move(request));
    loop.RunToEnd();
    EXPECT_EQ(loop[handle].error, "") << conversation.cache.policy << ", alone";
    answers.push_back(loop[handle].tokens);
  };
  for (int sample = 0; sample < conversation.samples; ++sample) {
    Request request = RequestOf(conversation);
    *request.sampling.seed += 1000 * sample;
    if (!conversation.questions.empty()) request.keep_as.handle = "kept";
    run(std::move(request));
  }
  for (size_t question = 0; question < conversation.questions.size(); ++question)
    run(QuestionOf(conversation, question, "kept"));
  return answers;
}

namespace {

class EngineSchedule {
 public:
  EngineSchedule(uint64_t seed, int num_requests, StepExecutor* engine, AnswersAlone* alone)
      : seed_(seed), max_requests_(num_requests), dice_(seed), alone_(alone) {
    SchedulerOptions options;
    options.max_num_batched_tokens = 8 + dice_.Below(120);
    options.watermark = 0.02 * dice_.Below(4);
    loop_ = std::make_unique<EngineLoop>(engine, options);
  }

  EngineScheduleCounts Run() {
    const int begun = 5 + dice_.Below(60);
    const int asked = 5 + dice_.Below(90);
    while (static_cast<int>(calls_.size()) < max_requests_) {
      for (int i = dice_.Below(4); i > 0; --i) {
        if (dice_.Percent(begun)) Begin();
        if (dice_.Percent(asked)) Ask();
      }
      if (dice_.Percent(2)) Cancel();
      loop_->Step();
      CheckInvariants();
    }
    loop_->RunToEnd();
    for (const Call& call : calls_) Compare(call);
    const ServingStats stats = loop_->scheduler().Stats();
    counts_.swaps = stats.swaps;
    counts_.preemptions = stats.preemptions;
    counts_.shrinks = stats.shrinks;
    counts_.requests = calls_.size();
    return counts_;
  }

 private:
  struct Call {
    int conversation = 0;
    size_t answer = 0;  // index in the conversation's answers
    RequestHandle handle = 0;
  };

  void Begin() {
    const int i = dice_.Below(alone_->size());
    const Conversation& conversation = alone_->conversation(i);
    const size_t first = calls_.size();
    for (int sample = 0; sample < conversation.samples; ++sample) {
      Request request = RequestOf(conversation);
      *request.sampling.seed += 1000 * sample;
      if (!conversation.questions.empty()) request.keep_as.handle = absl::StrCat("kept ", first);
      if (sample > 0) request.sample_of = calls_[first].handle;
      calls_.push_back({i, static_cast<size_t>(sample), loop_->Add(std::move(request))});
    }
    counts_.forks += conversation.samples - 1;
  }

  // Continues from the context of one of the most recent conversations that still have one.
  void Ask() {
    std::vector<Call> kept;
    for (size_t i = calls_.size(); i-- > 0 && kept.size() < 8;) {
      if (calls_[i].answer == 0 && (*loop_)[calls_[i].handle].context != nullptr)
        kept.push_back(calls_[i]);
    }
    if (kept.empty()) return;
    const Call& call = kept[dice_.Below(static_cast<int>(kept.size()))];
    const Conversation& conversation = alone_->conversation(call.conversation);
    const std::string& context = (*loop_)[call.handle].context->id.handle;
    const size_t question = dice_.Below(static_cast<int>(conversation.questions.size()));
    const RequestHandle handle = loop_->Add(QuestionOf(conversation, question, context));
    if (!(*loop_)[handle].error.empty()) return;  // the context was evicted
    ++counts_.continued;
    calls_.push_back({call.conversation, conversation.samples + question, handle});
  }

  void Cancel() {
    if (calls_.empty()) return;
    const int back = 1 + dice_.Below(std::min<int>(10, static_cast<int>(calls_.size())));
    loop_->scheduler().Cancel(calls_[calls_.size() - back].handle, absl::CancelledError("cancel"));
    ++counts_.cancels;
  }

  void CheckInvariants() {
    const absl::Status status = hydrant::CheckInvariants(loop_->scheduler().State());
    if (!status.ok()) Fault(absl::StrCat("invariants: ", std::string(status.message())));
  }

  void Fault(const std::string& text) {
    if (counts_.faults.size() < kMaxFaults)
      counts_.faults.push_back(absl::StrCat("seed ", seed_, ": ", text));
  }

  void Compare(const Call& call) {
    const EngineLoop::Stream& stream = (*loop_)[call.handle];
    const Conversation& conversation = alone_->conversation(call.conversation);
    const std::string& policy = conversation.cache.policy;
    const std::string name = absl::StrCat(
        "conversation ", call.conversation, " (", policy, ", ", conversation.prompt.size(),
        " tokens, budget ", conversation.cache.max_cache_tokens.value_or(0), "), answer ",
        call.answer, ", stream ", call.handle, ", ", stream.swaps, " swaps, ", stream.preemptions,
        " preemptions");
    const bool cancelled = stream.error.starts_with("CANCELLED");
    if (!stream.error.empty() && !cancelled) {
      ++counts_.failed;
      return Fault(absl::StrCat(name, ": ", stream.error));
    }
    if (stream.shrinks > 0) return;  // a run alone would not have shrunk it
    const std::vector<TokenId>& expected = alone_->answers(call.conversation).at(call.answer);
    const bool equal =
        cancelled ? stream.tokens.size() <= expected.size() &&
                        std::equal(stream.tokens.begin(), stream.tokens.end(), expected.begin())
                  : stream.tokens == expected;
    ++counts_.compared;
    ++counts_.compared_of[policy];
    if (equal) return;
    ++counts_.differ;
    ++counts_.differ_of[policy];
    Fault(absl::StrCat(name, ": ", absl::StrJoin(stream.tokens, " "), ", alone ",
                       absl::StrJoin(expected, " ")));
  }

  const uint64_t seed_;
  const int max_requests_;
  Dice dice_;
  AnswersAlone* const alone_;
  std::unique_ptr<EngineLoop> loop_;
  std::vector<Call> calls_;
  EngineScheduleCounts counts_;
};

}  // namespace

EngineScheduleCounts RunEngineSchedule(uint64_t seed, int num_requests, StepExecutor* engine,
                                       AnswersAlone* alone) {
  return EngineSchedule(seed, num_requests, engine, alone).Run();
}

}  // namespace hydrant
