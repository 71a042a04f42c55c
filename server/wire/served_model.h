// The served model as the gRPC handlers see it. Plain data and borrowed pointers; immutable once it
// is published.
#ifndef HYDRANT_SERVER_WIRE_SERVED_MODEL_H_
#define HYDRANT_SERVER_WIRE_SERVED_MODEL_H_

#include <cstdint>
#include <string>

#include "engine/cache/sha256.h"
#include "engine/model/model_config.h"
#include "engine/model/sampling_defaults.h"
#include "engine/run/engine.h"
#include "engine/run/step/batch.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/grammar/grammar_compiler.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace hydrant {

struct ServedModel {
  std::string name;              // accepted in requests
  std::string own_name;          // the name in the model file, also accepted; "": none
  SamplingDefaults sampling;     // defaults for requests
  std::string path;              // a file, or a folder
  std::string tokenizer_folder;  // has the tokenizer's own files; "": `path` is a GGUF file
  ModelConfig config;
  EngineLimits limits;
  KvLayout kv_layout;
  int64_t page_bytes = 0;
  Sha256Digest fingerprint = {};  // ModelFingerprint()
  EngineMemory memory;
  std::string engine_description;
  const Tokenizer* tokenizer = nullptr;
  // null: chat prompts are refused with no_chat_reason
  const ChatTemplate* chat_template = nullptr;
  std::string no_chat_reason;
  GrammarCompiler* grammars = nullptr;  // null: structured output is refused with no_grammar_reason
  std::string no_grammar_reason;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_SERVED_MODEL_H_
