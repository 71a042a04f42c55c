#include "server/startup/model_loader.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/run/engine.h"
#include "engine/run/forward/score_predictor.h"
#include "engine/run/model_fingerprint.h"
#include "engine/text/chat/chat_template_files.h"
#include "kernels/byte_text.h"
#include "kernels/host_memory.h"
#include "kernels/kv_pages.h"
#include "kernels/status_macros.h"
#include "scheduler/request_check.h"
#include "server/startup/machine_limits.h"
#include "server/startup/model_argument.h"
#include "server/startup/model_fetch.h"
#include "server/wire/request_conversion.h"
#include "server/wire/status_details.h"

namespace hydrant {
namespace {

constexpr int64_t kMaxDefaultSwap = int64_t{4} << 30;

constexpr int kSummaryTokens = 1024;

absl::Status Within(const std::string& what, const absl::Status& status) {
  return {status.code(), fmt::format("{}: {}", what, std::string(status.message()))};
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const DaemonOptions& options,
                                                         const ModelSource& source) {
  if (!options.tokenizer_path.empty()) return TokenizerFromPath(options.tokenizer_path);
  if (source.gguf() != nullptr) return TokenizerFromGguf(*source.gguf());
  return TokenizerFromPath(source.folder());
}

std::string FolderOfTokenizer(const DaemonOptions& options, const ModelSource& source) {
  if (options.tokenizer_path.empty()) return source.gguf() != nullptr ? "" : source.folder();
  const std::filesystem::path path = options.tokenizer_path;
  return std::filesystem::is_directory(path) ? path.string() : path.parent_path().string();
}

// A model without a usable template still serves text and token ids.
void OpenChatTemplate(const ModelSource& source, LoadedModel* loaded) {
  const Tokenizer& tokenizer = *loaded->tokenizer;
  absl::StatusOr<ChatTemplateSource> read = source.gguf() != nullptr
                                                ? ReadChatTemplates(*source.gguf())
                                                : ReadChatTemplates(source.folder());
  if (!read.ok()) {
    loaded->served.no_chat_reason = absl::IsNotFound(read.status())
                                        ? "the model has no chat template"
                                        : std::string(read.status().message());
    return;
  }
  // The tokenizer may know special tokens that the configuration lacks.
  for (const auto& [name, id] :
       {std::pair("bos_token", tokenizer.bos_id()), std::pair("eos_token", tokenizer.eos_id())}) {
    if (id >= 0)
      read->special_tokens.try_emplace(name, tokenizer.TokenText(static_cast<TokenId>(id)));
  }
  absl::StatusOr<std::unique_ptr<ChatTemplate>> made = MakeChatTemplate(*read);
  if (made.ok()) {
    loaded->chat_template = *std::move(made);
  } else {
    loaded->served.no_chat_reason = std::string(made.status().message());
  }
}

void OpenGrammars(LoadedModel* loaded) {
  const Tokenizer& tokenizer = *loaded->tokenizer;
  absl::StatusOr<std::unique_ptr<GrammarCompiler>> compiler =
      GrammarCompiler::Create(VocabularyOf(tokenizer, tokenizer.VocabSize()), GrammarLimits());
  if (compiler.ok()) {
    loaded->grammars = *std::move(compiler);
  } else {
    loaded->served.no_grammar_reason = std::string(compiler.status().message());
  }
}

// The length of the sequences in PoolSummary() and CheckPool().
int64_t SummaryTokens(const EngineLimits& limits) {
  return std::min<int64_t>(kSummaryTokens, limits.max_model_len);
}

// Pages of a sequence of `tokens` tokens with `kept` of them kept per head.
int64_t SequencePages(const EngineLimits& limits, int64_t kept, int64_t tokens) {
  int64_t pages = 0;
  for (const CacheGroup& group : limits.Groups())
    pages += group.NumHeads() * PagesOf(group.EntriesOf(tokens, kept), limits.block_size);
  return pages;
}

// Adds a remedy to out-of-memory errors of the engine.
absl::Status EngineError(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return {status.code(),
          fmt::format("{}; lower --kv-cache-memory-bytes, --num-gpu-blocks-override, "
                      "--prefix-cache-memory-bytes, --context-memory-bytes, --max-num-seqs "
                      "or --max-model-len, or choose a smaller --dtype",
                      std::string(status.message()))};
}

// The served name is --served-model-name or the hub's name. Otherwise it is the name of the file or
// folder, which users know, and requests may use the name in the metadata as well.
void SetNames(const DaemonOptions& options, const ModelConfig& config, ServedModel* served) {
  served->name = options.served_model_name;
  if (!served->name.empty()) return;
  served->name = NameOfPath(options.model_path);
  if (IsModelName(config.name)) served->own_name = config.name;
}

// Ignores, with a warning, recommendations that are invalid sampling parameters: the model can
// still be served.
SamplingDefaults SamplingOf(const ModelSource& source) {
  absl::StatusOr<SamplingDefaults> defaults = ReadSamplingDefaults(source);
  const absl::Status good =
      defaults.ok() ? CheckSampling(WithDefaults(*defaults)) : defaults.status();
  if (good.ok()) return *defaults;
  spdlog::warn("what the model's files recommend for sampling is not used: {}",
               std::string(good.message()));
  return {};
}

// An error if the KV pool is too small for one sequence of SummaryTokens() at a fifth of its cache:
// such a pool would refuse all but the shortest requests.
absl::Status CheckPool(const EngineLimits& limits, int64_t page_bytes) {
  const int64_t tokens = SummaryTokens(limits);
  const int64_t whole = SequencePages(limits, tokens, tokens);
  const int64_t fifth = SequencePages(limits, (tokens + 4) / 5, tokens);
  if (limits.num_blocks >= fifth) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("--kv-cache-memory-bytes: a KV pool of {} pages, {}, holds no sequence: one of "
                  "{} tokens takes "
                  "{}, or {} with a policy that keeps 20 % of it; give it that much, or more",
                  limits.num_blocks, FormatByteSize(limits.num_blocks * page_bytes), tokens,
                  FormatByteSize(whole * page_bytes), FormatByteSize(fifth * page_bytes)));
}

// Without room in the folder requests are slower but do not fail: sequences recompute instead of
// being swapped.
void DropUnwritableSwap(EngineOptions* options) {
  if (options->swap_directory.empty()) return;
  const int64_t bytes = options->swap_space_bytes + options->context_memory_bytes;
  const absl::StatusOr<DeviceBuffer> room =
      AllocateFileMemory(static_cast<size_t>(bytes), options->swap_directory);
  if (room.ok()) return;
  spdlog::warn(
      "--swap-directory: {}; contexts stay in memory, and nothing is swapped out: sequences whose "
      "pages others need read again",
      std::string(room.status().message()));
  options->swap_directory.clear();
  options->swap_space_bytes = 0;
}

// Without a predictor, requests without a policy of their own would all be refused.
absl::Status CheckDefaultCaches(const DaemonOptions& options, const EngineLimits& limits) {
  const auto check = [&](const char* flag, const DefaultCache& cache) -> absl::Status {
    if (cache.spec.policy != "learned" || limits.score_predictor != 0) return absl::OkStatus();
    return absl::FailedPreconditionError(fmt::format(
        "{} {}: the model has no score predictor; make one with hydrant-eval fit, beside the model "
        "or named by --score-predictor",
        flag, cache.text));
  };
  absl::Status status = check("--default-cache-policy", options.default_cache);
  for (const DaemonOptions::ListenAs& more : options.listen_as) {
    if (status.ok()) status = check("--listen-as", more.cache);
  }
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadModel(
    const DaemonOptions& given, const std::function<void(double)>& progress) {
  const absl::StatusOr<DaemonOptions> local = WithLocalModel(given);
  if (!local.ok()) return Within("--model " + given.model_path, local.status());
  const DaemonOptions& options = *local;
  absl::StatusOr<std::unique_ptr<ModelSource>> opened =
      OpenModel(options.model_path, options.load_format);
  if (!opened.ok()) return Within("--model " + options.model_path, opened.status());
  const std::shared_ptr<const ModelSource> source = *std::move(opened);

  auto loaded = std::make_unique<LoadedModel>();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = OpenTokenizer(options, *source);
  if (!tokenizer.ok()) {
    return Within("tokenizer of " + (options.tokenizer_path.empty() ? options.model_path
                                                                    : options.tokenizer_path),
                  tokenizer.status());
  }
  loaded->tokenizer = *std::move(tokenizer);
  if (loaded->tokenizer->VocabSize() > static_cast<TokenId>(source->config().vocab_size)) {
    return absl::InvalidArgumentError(fmt::format(
        "the tokenizer has {} ids, but the model's vocabulary has {}: they do not belong together",
        loaded->tokenizer->VocabSize(), source->config().vocab_size));
  }
  OpenChatTemplate(*source, loaded.get());
  OpenGrammars(loaded.get());
  HYDRANT_ASSIGN_OR_RETURN(loaded->served.fingerprint,
                           ModelFingerprint(*source, *loaded->tokenizer));

  EngineOptions engine_options = options.engine;
  engine_options.sampled_vocab = static_cast<int>(loaded->tokenizer->VocabSize());
  auto predictor = FindScorePredictor(options.score_predictor, options.model_path, source->config(),
                                      HexOf(loaded->served.fingerprint));
  if (!predictor.ok()) return Within("--score-predictor", predictor.status());
  engine_options.score_predictor = *std::move(predictor);
  const MachineLimits machine = ReadMachineLimits("", AffinityCpus());
  engine_options.kv_cache_memory_limit = DefaultKvCacheBytes(machine);
  engine_options.prefix_cache_memory_bytes =
      options.prefix_cache_memory_bytes.value_or(DefaultReuseBytes(machine));
  engine_options.context_memory_bytes =
      options.context_memory_bytes.value_or(DefaultReuseBytes(machine));
  engine_options.swap_space_bytes = options.swap_space_bytes.value_or(
      engine_options.device == "cuda" ? std::min(kMaxDefaultSwap, DefaultReuseBytes(machine)) : 0);
  DropUnwritableSwap(&engine_options);
  engine_options.host_memory_bytes = machine.available_bytes;
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(source, engine_options, progress);
  if (!engine.ok()) return EngineError(engine.status());
  HYDRANT_RETURN_IF_ERROR(CheckDefaultCaches(options, (*engine)->limits()));
  HYDRANT_RETURN_IF_ERROR(
      CheckPool((*engine)->limits(), static_cast<int64_t>((*engine)->kv_layout().PageBytes())));

  ServedModel& served = loaded->served;
  SetNames(options, source->config(), &served);
  if (options.generation_config) served.sampling = SamplingOf(*source);
  served.path = options.model_path;
  served.tokenizer_folder = FolderOfTokenizer(options, *source);
  served.config = (*engine)->config();
  served.limits = (*engine)->limits();
  served.kv_layout = (*engine)->kv_layout();
  served.page_bytes = static_cast<int64_t>((*engine)->kv_layout().PageBytes());
  served.memory = (*engine)->memory();
  served.engine_description = (*engine)->Description();
  served.tokenizer = loaded->tokenizer.get();
  served.chat_template = loaded->chat_template.get();
  served.grammars = loaded->grammars.get();
  loaded->engine = *std::move(engine);
  return loaded;
}

std::string MemorySummary(const EngineMemory& memory) {
  const int64_t reused = memory.prefix_cache + memory.offloaded_caches + memory.swap_space;
  const std::string size = FormatByteSize(reused);
  const std::string host =
      memory.pinned_host ? size + " of the host's, pinned" : "up to " + size + " more as they fill";
  return fmt::format(
      "memory: {} (weights {}, KV pool {}, workspace {}), and {} (prefix cache {}, contexts {}, "
      "swap space {})",
      FormatByteSize(memory.Total() - reused), FormatByteSize(memory.weights),
      FormatByteSize(memory.kv_pool), FormatByteSize(memory.workspace), host,
      FormatByteSize(memory.prefix_cache), FormatByteSize(memory.offloaded_caches),
      FormatByteSize(memory.swap_space));
}

std::string PoolSummary(const EngineLimits& limits, int64_t page_bytes) {
  const int64_t tokens = SummaryTokens(limits);
  const int64_t full =
      limits.num_blocks / std::max<int64_t>(SequencePages(limits, tokens, tokens), 1);
  const int64_t fifth =
      limits.num_blocks / std::max<int64_t>(SequencePages(limits, (tokens + 4) / 5, tokens), 1);
  return fmt::format("KV pool of {} pages, {}: {} full or {} 20 % sequences of {} tokens",
                     limits.num_blocks, FormatByteSize(limits.num_blocks * page_bytes), full, fifth,
                     tokens);
}

}  // namespace hydrant
