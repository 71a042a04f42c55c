// From a path to a model that answers: files, tokenizer, chat template, engine. Everything is owned
// here; the scheduler and the service borrow.
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
  std::unique_ptr<GrammarCompiler> grammars;    // the same
  std::unique_ptr<StepExecutor> engine;
  ServedModel served;  // points to the above
};

// A model of the hub is fetched first. `progress` hears a fraction in [0, 1] of the loading. An
// error is one line that names the file or the flag.
absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(const DaemonOptions& options,
                                                       const std::function<void(double)>& progress);

// What the daemon loads with; a test puts an engine of its own behind it.
using ModelLoader = std::function<absl::StatusOr<std::unique_ptr<LoadedModel>>(
    const DaemonOptions& options, const std::function<void(double)>& progress)>;

// What the engine holds, or will hold when all of it is used.
std::string MemorySummary(const EngineMemory& memory);

// "holds 40 full or 180 20 % sequences of 1,024 tokens": how many sequences of that length the pool
// holds, with all their entries and with a fifth of them.
std::string PoolSummary(const EngineLimits& limits, int64_t page_bytes);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_MODEL_LOADER_H_
