// Pre-tokenizer expressions of the model families, as in the "Split" entries of their published
// tokenizer.json files. Compiled by Regex (regex.h). Plain data.
#ifndef HYDRANT_ENGINE_TEXT_TOKENIZER_SPLIT_PATTERNS_H_
#define HYDRANT_ENGINE_TEXT_TOKENIZER_SPLIT_PATTERNS_H_

#include <string_view>

namespace hydrant {

extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;   // also cl100k's: Phi-4, OLMo 2, Granite 4
extern const std::string_view kQwen2Pattern;    // Llama 3's with digits one by one
extern const std::string_view kQwen35Pattern;   // Qwen2's with marks as parts of words
extern const std::string_view kO200kPattern;    // GPT-4o, gpt-oss, Llama 4, Phi-4-mini
extern const std::string_view kTekkenPattern;   // o200k's without contractions, single digits
extern const std::string_view kDigitPattern;    // one character of category N
extern const std::string_view kLineEndPattern;  // DeepSeek: one line end
extern const std::string_view kHanPattern;      // DeepSeek LLM and Coder: Chinese to Hangul
extern const std::string_view kFinalSpacePattern;
extern const std::string_view kDeepSeekLlmLetters, kDeepSeekLlmPunctuation;
extern const std::string_view kDeepSeekCoderLetters, kDeepSeekCoderPunctuation;
extern const std::string_view kDeepSeekV3Digits, kDeepSeekV3Cjk, kDeepSeekV3Words;

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_TEXT_TOKENIZER_SPLIT_PATTERNS_H_
