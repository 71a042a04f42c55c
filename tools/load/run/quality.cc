#include "tools/load/run/quality.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hydrant::load {
namespace {

constexpr double kTick = 0.25;  // seconds

// The answer to one prompt under one arm.
struct Answer {
  bool complete = false;
  std::vector<uint32_t> ids = {};
  std::string error = {};
};

class Replay {
 public:
  Replay(std::span<const PlannedRequest> prompts, size_t arms, const QualityOptions& options,
         Target* target)
      : prompts_(prompts), arms_(arms), options_(options), target_(target) {
    answers_.resize(prompts.size() * arms);
  }

  // Answer p * arms + a belongs to arm a and prompt p: the arms of a prompt run concurrently, so
  // that an aborted run has complete prompts.
  std::vector<Answer> Go() {
    size_t next = 0;
    int64_t open = 0;
    while (next < answers_.size() || open > 0) {
      if (options_.go_on && !options_.go_on()) break;
      for (; next < answers_.size() && open < options_.concurrency; ++next, ++open) Send(next);
      StreamEvent event;
      if (target_->Wait(target_->Now() + kTick, &event)) open -= Take(std::move(event));
    }
    for (size_t i = 0; i < next; ++i) target_->Cancel(static_cast<int64_t>(i));
    return std::move(answers_);
  }

 private:
  void Send(size_t which) {
    const PlannedRequest& prompt = prompts_[which / arms_];
    target_->Send({.index = static_cast<int64_t>(which),
                   .arm = static_cast<int>(which % arms_),
                   .prompt = prompt.prompt,
                   .max_tokens = prompt.max_tokens,
                   .seed = prompt.seed});
  }

  // Returns whether an answer ended.
  bool Take(StreamEvent event) {
    Answer& answer = answers_[event.index];
    answer.ids.insert(answer.ids.end(), event.token_ids.begin(), event.token_ids.end());
    if (!event.ended) return false;
    answer.complete = event.status == "OK" && !answer.ids.empty();
    if (!answer.complete)
      answer.error = event.status == "OK" ? "the answer has no token ids"
                                          : absl::StrCat(event.status, " ", event.error);
    return true;
  }

  std::span<const PlannedRequest> prompts_;
  const size_t arms_;
  const QualityOptions& options_;
  Target* target_;
  std::vector<Answer> answers_;
};

}  // namespace

void AddPair(std::span<const uint32_t> full, std::span<const uint32_t> answer,
             Agreement* agreement) {
  const size_t shorter = std::min(full.size(), answer.size());
  const size_t longer = std::max(full.size(), answer.size());
  size_t equal = 0;
  while (equal < shorter && full[equal] == answer[equal]) ++equal;
  agreement->before_difference += static_cast<int64_t>(equal);
  for (size_t i = 0; i < shorter; ++i) agreement->matched += full[i] == answer[i];
  agreement->positions += static_cast<int64_t>(longer);
  agreement->identical += equal == longer;
  ++agreement->prompts;
}

absl::StatusOr<std::vector<Agreement>> CheckQuality(std::span<const PlannedRequest> prompts,
                                                    std::span<const std::string> arms,
                                                    const QualityOptions& options, Target* target) {
  const std::vector<Answer> answers = Replay(prompts, arms.size(), options, target).Go();
  std::vector<Agreement> agreements;
  for (size_t arm = 1; arm < arms.size(); ++arm) agreements.push_back({.arm = arms[arm]});
  std::string why = "it was broken off before the first prompt was answered";
  int64_t compared = 0;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::span<const Answer> of_prompt(&answers[p * arms.size()], arms.size());
    const auto failed = std::find_if(of_prompt.begin(), of_prompt.end(),
                                     [](const Answer& answer) { return !answer.complete; });
    if (failed != of_prompt.end()) {
      if (!failed->error.empty()) why = failed->error;
      continue;
    }
    ++compared;
    for (size_t arm = 1; arm < arms.size(); ++arm)
      AddPair(of_prompt[0].ids, of_prompt[arm].ids, &agreements[arm - 1]);
  }
  if (compared == 0)
    return absl::UnavailableError(absl::StrCat("check-quality: no prompt was answered: ", why));
  return agreements;
}

}  // namespace hydrant::load
