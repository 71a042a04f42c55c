// The context of a run's first case with the share of KV heads that keep each of its tokens, arm by
// arm, for the report. In a file beside the results, so that a run that goes on has it too.
#ifndef HYDRANT_TOOLS_EVAL_KEPT_TEXT_H_
#define HYDRANT_TOOLS_EVAL_KEPT_TEXT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/run/step/kept_entries.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant::eval {

class KeptText {
 public:
  // Reads the file, if there is one; a file that is no JSON counts as none.
  explicit KeptText(std::string path);

  // Replaces an arm's former shares.
  void Add(const std::string& arm, double budget, const KeptEntries& kept);
  // Sets the text, and writes the file.
  absl::Status Save(const std::vector<TokenId>& context, const Tokenizer& tokenizer);

  // {texts, lengths, arms: [{arm, budget, shares}]}: `texts` are the tokens' bytes in base64,
  // `lengths` their numbers; `shares` a byte a token in base64, 255: all heads. null: no file.
  const nlohmann::json& json() const { return json_; }

 private:
  const std::string path_;
  nlohmann::json json_;
};

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_KEPT_TEXT_H_
