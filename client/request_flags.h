// Options shared by chat and generate, and the request made from them. Plain data.
#ifndef HYDRANT_CLIENT_REQUEST_FLAGS_H_
#define HYDRANT_CLIENT_REQUEST_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hydrant/v1/hydrant.pb.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant {

// Default of --max-tokens: a model that does not end its answer would fill its whole context.
inline constexpr uint32_t kDefaultMaxTokens = 512;

struct RequestFlags {
  std::optional<std::string> model, request_id;
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> num_samples;  // for `generate` only
  std::optional<uint32_t> max_tokens;   // 0: the server's limit
  std::optional<uint32_t> min_tokens;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token_ids;
  std::vector<std::string> bad_words, choices;
  std::optional<std::string> json_schema_file, regex, grammar_file;
  bool json_object = false;
  std::optional<uint32_t> max_whitespace;
  std::optional<uint32_t> truncate_prompt_tokens;
  bool include_stop = false, ignore_eos = false, keep_special_tokens = false;
  std::optional<std::string> policy;
  std::optional<double> cache_ratio;
  std::optional<uint32_t> max_cache_tokens, min_cache_tokens, sink_tokens, protected_window_size;
  std::optional<double> min_retained_mass;
  std::optional<uint32_t> question_tokens;
  bool question_agnostic = false;
  bool no_reuse = false;
  std::optional<std::string> cache_salt, context;
  std::optional<uint32_t> recall_tokens;
  bool keep = false;
  std::vector<std::string> params;  // "name=value"
  double timeout_s = 0;             // 0: none
  std::optional<int32_t> priority;
  std::string on_pressure, tenant;
  double target_ttft_s = 0, target_tpot_s = 0;  // 0: none
  int resume = 3;                               // times that a lost stream is resumed
};

// REQUIRES: the flags outlive the app's parsing.
void AddRequestFlags(CLI::App* app, RequestFlags* flags);

// The flags of the KV cache. REQUIRES: as above
void AddCacheFlags(CLI::App* app, RequestFlags* flags);

// All fields but the prompt.
v1::GenerateRequest MakeRequest(const RequestFlags& flags);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_REQUEST_FLAGS_H_
