// Loads a model and all it needs from a path: files, tokenizer, chat template, engine. LoadedModel
// owns everything; the scheduler and the service borrow.
#ifndef HYDRANT_SERVER_STARTUP_MODEL_LOADER_H_
#define HYDRANT_SERVER_STARTUP_MODEL_LOADER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/run/step/batch.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/grammar/grammar_compiler.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "server/startup/daemon_options.h"
#include "server/wire/served_model.h"

namespace hydrant {

struct LoadedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // may be null
  std::unique_ptr<GrammarCompiler> grammars;    // may be null
  std::unique_ptr<StepExecutor> engine;
  ServedModel served;  // points to the members above
};

// Downloads a model of the hub first. `progress` is called with the loaded fraction in [0, 1]. An
// error is one line that names the file or the flag.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const DaemonOptions& options,
                                                       const std::function<void(double)>& progress);

// The daemon's loader; tests substitute their own engine.
using ModelLoader = std::function<absl::StatusOr<std::unique_ptr<LoadedModel>>(
    const DaemonOptions& options, const std::function<void(double)>& progress)>;

// Memory held by the engine when fully used.
std::string MemorySummary(const EngineMemory& memory);

// "holds 40 full or 180 20 % sequences of 1,024 tokens": the number of sequences of that length in
// the pool, with all their entries and with a fifth of them.
std::string PoolSummary(const EngineLimits& limits, int64_t page_bytes);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_MODEL_LOADER_H_
