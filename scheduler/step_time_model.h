// Predicts the time of a step, learned online: a coefficient for every kind of work in it, and one
// for the step itself. Plain arithmetic: no clock, no lock.
//
//   t = a + b rows + c pages + d prompt tokens + e prompt pairs
//
// The coefficients are never negative. They minimize the squared relative errors of the steps, with
// more weight for newer steps, and less for a step that took much longer than predicted because of
// other load on the machine. Coefficients without recent evidence stay as they are.
#ifndef HYDRANT_SCHEDULER_STEP_TIME_MODEL_H_
#define HYDRANT_SCHEDULER_STEP_TIME_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace hydrant {

// The work of a step. Prefill of some layers counts as a fraction.
struct StepWork {
  double rows = 0;           // decoded sequences
  double pages = 0;          // pages that they attend to, over all layers and heads
  double prompt_tokens = 0;  // prefilled tokens
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

// A finished step.
struct StepTaken {
  int64_t begin = 0, end = 0;  // microseconds
  StepWork work{};
  double predicted_us = 0;  // before the step
};

class StepTimeModel {
 public:
  // Records a step's work and duration in microseconds. Steps without work are ignored.
  void Observe(const StepWork& work, double us);
  // Microseconds; 0 for kinds of work never seen.
  double Predict(const StepWork& work) const;
  // Without the constant time of a step.
  double Marginal(const StepWork& work) const;

  // Whether enough steps with decodes, or with prompts, have been seen.
  bool HasDecodeSamples() const { return num_decode_ >= kEnough; }
  bool HasPromptSamples() const { return num_prompt_ >= kEnough; }
  // Context length at which attention costs as much as the other work of a prompt token; a guess
  // if unknown.
  double AttentionScale() const;
  // Microseconds per prompt token, without the attention cost that AttentionScale() describes.
  // Until enough steps are known: the time of the last step with prompts, all its work included,
  // divided by its prompt tokens; 0: there was no such step.
  double PromptTokenUs() const;

  // Mean of |predicted / taken - 1| over recent steps, with predictions made before them.
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
  Terms scale_ = {};  // mean square of a term in steps that have it
  int64_t num_steps_ = 0, num_decode_ = 0, num_prompt_ = 0;
  double last_prompt_token_us_ = 0;
  double relative_error_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_STEP_TIME_MODEL_H_
