// What the gRPC front knows of the model it serves. Plain data and borrowed pointers; immutable
// once it is published.
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
  std::string name;              // the one requests may name
  std::string own_name;          // the name in its file, which requests may use too; "": none
  SamplingDefaults sampling;     // defaults of requests
  std::string path;              // a file, or a folder
  std::string tokenizer_folder;  // with the tokenizer's own files; "": `path` is a GGUF file
  ModelConfig config;
  EngineLimits limits;
  KvLayout kv_layout;
  int64_t page_bytes = 0;
  Sha256Digest fingerprint = {};  // ModelFingerprint()
  EngineMemory memory;
  std::string engine_description;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: chat prompts are refused, for the reason in
  std::string no_chat_reason;
  GrammarCompiler* grammars = nullptr;  // null: structured output is refused, for the reason in
  std::string no_grammar_reason;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_SERVED_MODEL_H_
