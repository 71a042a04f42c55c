#include "engine/text/tokenizer/gguf_pretokenizers.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/text.h"
#include "engine/text/tokenizer/split_patterns.h"

namespace hydrant {
namespace {

struct Row {
  std::vector<std::string_view> names;
  std::vector<std::string_view> splits;  // applied in order; each match becomes a piece
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
};

const std::vector<Row>& Rows() {
  static const auto* rows = new std::vector<Row>{
      {{"default", "gpt-2", "phi-2"}, {kGpt2Pattern}},
      // GPT-NeoX's tokenizer and its descendants.
      {{"olmo", "mpt"}, {kGpt2Pattern}, /*nfc=*/true},
      // Granite 3 uses StarCoder's rules under the name "refact".
      {{"smollm", "starcoder", "refact"}, {kDigitPattern, kGpt2Pattern}},
      {{"command-r"}, {kDigitPattern, kGpt2Pattern}, /*nfc=*/true},
      {{"llama-bpe", "llama3", "llama-v3", "pixtral"},
       {kLlama3Pattern},
       /*nfc=*/false,
       /*ignore_merges=*/true,
       /*add_bos=*/true},
      // SmolLM3: Llama 3's without BOS.
      {{"smaug-bpe"}, {kLlama3Pattern}, /*nfc=*/false, /*ignore_merges=*/true},
      // cl100k: Phi-4, OLMo 2 and 3, Granite 4.
      {{"dbrx"}, {kLlama3Pattern}},
      {{"qwen2", "deepseek-r1-qwen", "stablelm2"}, {kQwen2Pattern}, /*nfc=*/true},
      {{"qwen35"}, {kQwen35Pattern}, /*nfc=*/true},
      // o200k: gpt-oss, Phi-4-mini.
      {{"gpt-4o"}, {kO200kPattern}},
      {{"llama4"},
       {kO200kPattern},
       /*nfc=*/false,
       /*ignore_merges=*/true,
       /*add_bos=*/true},
      {{"tekken"},
       {kTekkenPattern},
       /*nfc=*/false,
       /*ignore_merges=*/true,
       /*add_bos=*/true},
      {{"deepseek-llm"},
       {kLineEndPattern, kDeepSeekLlmLetters, kDeepSeekLlmPunctuation, kFinalSpacePattern,
        kHanPattern, kDigitPattern}},
      {{"deepseek-coder"},
       {kLineEndPattern, kDeepSeekCoderLetters, kDeepSeekCoderPunctuation, kHanPattern,
        kDigitPattern}},
      {{"deepseek-v3"}, {kDeepSeekV3Digits, kDeepSeekV3Cjk, kDeepSeekV3Words}},
  };
  return *rows;
}

const Row* FindRow(std::string_view name) {
  for (const Row& row : Rows()) {
    if (std::find(row.names.begin(), row.names.end(), name) != row.names.end()) return &row;
  }
  return nullptr;
}

std::string KnownNames() {
  std::vector<std::string_view> names;
  for (const Row& row : Rows()) names.insert(names.end(), row.names.begin(), row.names.end());
  std::sort(names.begin(), names.end());
  return absl::StrJoin(names, ", ", [](std::string* out, std::string_view name) { *out += name; });
}

}  // namespace

absl::Status ApplyGgufPreTokenizer(const std::string& name, TokenizerSpec* spec, bool* add_bos) {
  const Row* row = FindRow(name);
  if (row == nullptr) {
    return absl::UnimplementedError(absl::StrCat("tokenizer.ggml.pre ", Quoted(name),
                                                 " is not supported; known: ", KnownNames()));
  }
  if (row->nfc) spec->normalizers.push_back({NormalizerSpec::Kind::kNfc, "", ""});
  for (const std::string_view split : row->splits) {
    PreTokenizerSpec step;
    step.regex = std::string(split);
    spec->pre_tokenizers.push_back(std::move(step));
  }
  spec->ignore_merges = row->ignore_merges;
  *add_bos = row->add_bos;
  return absl::OkStatus();
}

}  // namespace hydrant
