// Normalization of a piece of text before pre-tokenization: a list of steps, as in the "normalizer"
// of tokenizer.json. Immutable, thread safe.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_NORMALIZER_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_NORMALIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer/regex.h"
#include "engine/text/tokenizer/tokenizer_spec.h"

namespace hydrant {

class Normalizer {
 public:
  static absl::StatusOr<Normalizer> Create(const std::vector<NormalizerSpec>& specs);

  bool empty() const { return steps_.empty(); }
  // REQUIRES: `text` is valid UTF-8.
  absl::StatusOr<std::string> Apply(std::string text) const;

 private:
  struct Step {
    NormalizerSpec spec;
    std::unique_ptr<Regex> regex;  // kReplaceRegex
  };
  std::vector<Step> steps_;
};

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_NORMALIZER_H_
