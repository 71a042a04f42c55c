// How long a step takes, learned while steps run: a time for every kind of work that is in it, and
// one for the step itself. Plain arithmetic: no clock, no lock.
//
//   t = a + b rows + c pages + d prompt tokens + e prompt pairs
//
// The coefficients are never negative. They are the least squares of the steps' relative errors,
// where newer steps count more; a step that took much longer than it should have, because something
// else ran on the machine, counts less. What steps say nothing about for a while stays as it was.
#ifndef HYDRANT_SCHEDULER_STEP_TIME_MODEL_H_
#define HYDRANT_SCHEDULER_STEP_TIME_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace hydrant {

// What a step does. Prompt work counts as a whole when it went through all layers.
struct StepWork {
  double rows = 0;           // sequences that decode a token
  double pages = 0;          // that these attend to, over all layers and heads
  double prompt_tokens = 0;  // that are read
  double prompt_pairs = 0;   // entries that these attend to: a prompt of n tokens has n * n / 2

  StepWork& operator+=(const StepWork& other) {
    rows += other.rows;
    pages += other.pages;
    prompt_tokens += other.prompt_tokens;
    prompt_pairs += other.prompt_pairs;
    return *this;
  }
  bool Empty() const { return rows <= 0 && prompt_tokens <= 0; }
};

// A step that has run.
struct StepTaken {
  int64_t begin = 0, end = 0;  // microseconds
  StepWork work{};
  double predicted_us = 0;  // before
};

class StepTimeModel {
 public:
  // A step with this work took so long, in microseconds. Steps without work are ignored.
  void Observe(const StepWork& work, double us);
  // Microseconds; 0 for work of a kind that was never seen.
  double Predict(const StepWork& work) const;
  // The same without what every step takes.
  double Marginal(const StepWork& work) const;

  // Enough has been seen of steps that decode, or of prompts, to go by.
  bool KnowsDecode() const { return num_decode_ >= kEnough; }
  bool KnowsPrompts() const { return num_prompt_ >= kEnough; }
  // Tokens of context that cost a prompt's token as much as everything else that is done for it.
  // Where that is not known, a guess.
  double AttentionScale() const;
  // Microseconds per prompt token, without the attention cost that AttentionScale() describes.
  // Until enough steps are known: the time of the last step with prompts, all its work included,
  // divided by its prompt tokens; 0: there was no such step.
  double PromptTokenUs() const;

  // Of the last steps, how far predictions made before were from what they took: the mean of
  // |predicted / taken - 1|.
  double relative_error() const { return relative_error_; }

 private:
  static constexpr size_t kTerms = 5;
  using Terms = std::array<double, kTerms>;
  static constexpr int kEnough = 8;

  static Terms TermsOf(const StepWork& work);
  void Solve();

  Terms coefficients_ = {};
  // Normal equations of the steps so far, each divided by its time.
  std::array<Terms, kTerms> products_ = {};
  Terms sums_ = {};
  Terms scale_ = {};  // what the square of a term is in a step that has it
  int64_t num_steps_ = 0, num_decode_ = 0, num_prompt_ = 0;
  double last_prompt_token_us_ = 0;
  double relative_error_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STEP_TIME_MODEL_H_
