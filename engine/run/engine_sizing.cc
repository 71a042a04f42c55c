#include "engine/run/engine_sizing.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "engine/cache/state_slabs.h"
#include "engine/run/forward/score_predictor.h"
#include "engine/run/pool/kv_state.h"
#include "engine/run/step_results.h"
#include "fmt/format.h"
#include "kernels/byte_text.h"
#include "kernels/device_choice.h"
#include "kernels/host_memory.h"
#include "kernels/page_row.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

DType DefaultKvDType(WeightDType dtype) {
  switch (dtype) {
    case WeightDType::kFloat32:
      return DType::kF32;
    case WeightDType::kBFloat16:
      return DType::kBF16;
    case WeightDType::kStored:
    case WeightDType::kQ8_0:
    case WeightDType::kQ4_0:
    case WeightDType::kFp8:
      return DType::kF16;
  }
  return DType::kF32;
}

// Table entries per page: while less than half of the table is free, rows are up to 1.5 times as
// wide as needed (KvCacheManager::WidenRow), and each slot may have rows that are moving.
constexpr int kTableEntriesPerBlock = 8;

// All rows of a sequence are as wide as its widest head, so a window group's may be partly unused.
int64_t TableEntries(const EngineLimits& limits, int64_t blocks) {
  const int64_t heads = int64_t{limits.num_layers} * limits.num_kv_heads;
  const int full = limits.BudgetLayers() > 0 ? limits.BudgetLayers() : limits.num_layers;
  return kTableEntriesPerBlock * (limits.num_layers / full) * blocks +
         heads * (2 * limits.max_num_seqs + 8);
}

// A window of at least max_model_len has no effect and is ignored.
void SetWindow(const ModelConfig& config, EngineLimits* limits) {
  if (config.Window() == 0 || config.Window() >= limits->max_model_len) return;
  int layers = 0;
  for (int layer = 0; layer < config.num_layers; ++layer)
    layers += config.KindOf(layer).window > 0 ? 1 : 0;
  limits->SetWindow(layers, config.Window());
}

// Pages of max_num_seqs full sequences and a tenth more, because last pages are partly filled; plus
// slabs for their whole state.
int64_t UsefulBlocks(const EngineLimits& limits, const KvLayout& layout) {
  const int64_t blocks = limits.PagesOfFull(limits.max_model_len) / limits.num_kv_heads;
  const double slabs = 1.0 / static_cast<double>(SlabShape::Of(layout).StatesIn(kAllStateLines));
  const double useful =
      1.1 * (1.0 + slabs) * static_cast<double>(blocks) * limits.num_kv_heads * limits.max_num_seqs;
  return static_cast<int64_t>(
      std::min(useful, static_cast<double>(std::numeric_limits<int32_t>::max())));
}

// Host memory that the engine may use.
int64_t HostBytes(const EngineOptions& options) {
  return options.host_memory_bytes > 0 ? options.host_memory_bytes
                                       : static_cast<int64_t>(HostMemory().total_bytes);
}

// Limits the memory for the heads of offloaded caches.
constexpr int kMaxOffloadedCaches = 4096;

// Pieces of `size` bytes in the host memory of an option.
absl::StatusOr<int> HowMany(std::string_view option, int64_t bytes, int64_t size,
                            const EngineOptions& options) {
  if (bytes < 0)
    return absl::InvalidArgumentError(fmt::format("{}: {} is negative", option, bytes));
  const int64_t host = HostBytes(options);
  if (bytes > host) {
    return absl::ResourceExhaustedError(
        fmt::format("{}: {} is more than the {} of the host's memory that are free", option,
                    FormatByteSize(bytes), FormatByteSize(host)));
  }
  return static_cast<int>(std::min<int64_t>(bytes / size, std::numeric_limits<int32_t>::max()));
}

// Device bytes for the pool and its tables.
absl::StatusOr<int64_t> DeviceBytes(const EngineOptions& options, const DeviceMemory& memory) {
  const auto total = static_cast<double>(memory.total_bytes);
  const auto used = total - static_cast<double>(memory.free_bytes);
  const auto bytes = static_cast<int64_t>(options.gpu_memory_utilization * total - used);
  if (bytes > 0) return bytes;
  return absl::ResourceExhaustedError(fmt::format(
      "gpu_memory_utilization: {} of the device's {} leaves nothing for the KV pool: {} are in use "
      "by weights, activations and other processes, which nvidia-smi lists",
      options.gpu_memory_utilization, FormatByteSize(memory.total_bytes),
      FormatByteSize(memory.total_bytes - memory.free_bytes)));
}

// Host bytes per table entry and per page: the lists of KvState (engine/run/pool/kv_state.h), the
// rows that steps in flight report (engine/run/step_results.h), and the scheduler's free pages.
constexpr int64_t kHostBytesPerEntry =
    sizeof(uint64_t) + StepResults::kMaxInFlight * sizeof(PageIds);
constexpr int64_t kHostBytesPerBlock = sizeof(int32_t) + 1;

// With more pages, state ids (engine/cache/state_slabs.h) would exceed 32 bits.
int64_t MaxBlocks(KvLayout layout) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  layout.num_blocks = std::numeric_limits<int32_t>::max();
  const int64_t states_a_page = SlabShape::Of(layout).EndOfStates(kLimit) / kLimit + 1;
  return kLimit / states_a_page - kArrayAlignment;  // values may begin later, for alignment
}

// The option that sets the pool's size, with its value.
std::string PoolOption(const EngineOptions& options) {
  return options.num_blocks_override.has_value()
             ? fmt::format("num_gpu_blocks_override: {}", *options.num_blocks_override)
             : fmt::format("kv_cache_memory_bytes: {}",
                           FormatByteSize(options.kv_cache_memory_bytes));
}

absl::Status PoolTooLarge(const EngineOptions& options, const EngineLimits& limits, int64_t bytes,
                          int64_t limit, std::string_view whose) {
  return absl::ResourceExhaustedError(fmt::format(
      "{}: {} pages take {} of {} memory with their tables, the limit is {}", PoolOption(options),
      limits.num_blocks, FormatByteSize(bytes), whose, FormatByteSize(limit)));
}

}  // namespace

// On a GPU, products from quantised blocks (kStored) are newer than the library's bf16 products.
WeightDType DefaultedDType(const EngineOptions& options) {
  return options.dtype.value_or(IsGpu(options.device) ? WeightDType::kBFloat16
                                                      : WeightDType::kStored);
}

absl::StatusOr<KvLayout> PlanLayout(const EngineOptions& options, const ModelConfig& config) {
  KvLayout layout;
  layout.dtype = options.kv_cache_dtype.value_or(DefaultKvDType(DefaultedDType(options)));
  if (!IsPageDType(layout.dtype, config.head_dim)) {
    return absl::InvalidArgumentError(fmt::format(
        "kv_cache_dtype: {} is not one of f32, f16, bf16 and, where heads have a multiple of {} "
        "dimensions, e4m3 (fp8), of {}, q8_0 (int8), q4_0 (int4); this model's have {}",
        DTypeName(layout.dtype), kE4M3RowUnit, BlockElements(DType::kQ8_0), config.head_dim));
  }
  if (options.block_size < 1 || options.block_size > 256) {
    return absl::InvalidArgumentError(
        fmt::format("block_size: {} is outside [1, 256]", options.block_size));
  }
  layout.block_size = options.block_size;
  layout.head_dim = config.head_dim;
  if (SlabShape::Of(layout).StatesIn(kAllStateLines) > 0) return layout;
  return absl::InvalidArgumentError(
      fmt::format("kv_cache_dtype: a head of {} dimensions in {} leaves no room for the scores of "
                  "its entries in a page; a key takes at least {} bytes",
                  config.head_dim, DTypeName(layout.dtype), kAllStateLines * sizeof(float)));
}

absl::StatusOr<EngineLimits> PlanLimits(const EngineOptions& options, const ModelConfig& config) {
  EngineLimits limits;
  limits.num_layers = config.num_layers;
  limits.num_kv_heads = config.num_kv_heads;
  limits.learned_positions = config.RotaryDim() == 0;
  limits.block_size = options.block_size;
  if (options.max_num_seqs < 1 || options.max_num_seqs > 65536) {
    return absl::InvalidArgumentError(
        fmt::format("max_num_seqs: {} is outside [1, 65536]", options.max_num_seqs));
  }
  limits.max_num_seqs = options.max_num_seqs;
  limits.max_model_len = options.max_model_len.value_or(config.max_context);
  if (limits.max_model_len < 2 || limits.max_model_len > config.max_context) {
    return absl::InvalidArgumentError(
        fmt::format("max_model_len: {} is outside [2, {}], the model's context",
                    limits.max_model_len, config.max_context));
  }
  limits.query_blocks = (config.num_heads / config.num_kv_heads + 1) / 2;
  SetWindow(config, &limits);
  limits.max_shared_statistics = options.max_shared_statistics;
  limits.max_held_tokens = options.max_held_tokens;
  if (options.score_predictor != nullptr) limits.score_predictor = options.score_predictor->Id();
  if (limits.max_held_tokens < 0 || limits.max_held_tokens > limits.prefill_rows) {
    return absl::InvalidArgumentError(fmt::format("max_held_tokens: {} is outside [0, {}]",
                                                  limits.max_held_tokens, limits.prefill_rows));
  }
  limits.prefill_arena_tokens =
      options.prefill_arena_tokens.value_or(std::max(limits.max_model_len / 4 * 5, 2048));
  if (limits.prefill_arena_tokens < limits.max_model_len) {
    return absl::InvalidArgumentError(
        fmt::format("prefill_arena_tokens: {} is below max_model_len {}",
                    limits.prefill_arena_tokens, limits.max_model_len));
  }
  if (!(options.gpu_memory_utilization > 0 && options.gpu_memory_utilization <= 1)) {
    return absl::InvalidArgumentError(fmt::format("gpu_memory_utilization: {} is outside (0, 1]",
                                                  options.gpu_memory_utilization));
  }
  return limits;
}

std::vector<GroupKind> GroupsOfLayers(const ModelConfig& config, const EngineLimits& limits) {
  std::vector<GroupKind> kinds(config.num_layers, GroupKind::kBudget);
  for (int layer = 0; layer < config.num_layers && limits.WindowLayers() > 0; ++layer) {
    if (config.KindOf(layer).window > 0) kinds[layer] = GroupKind::kWindow;
  }
  return kinds;
}

absl::Status PlanHostMemory(const EngineOptions& options, const KvLayout& layout,
                            EngineLimits* limits) {
  const PrefixBlocks blocks = PrefixBlocksOf(layout, *limits);
  const auto block = static_cast<int64_t>(blocks.BlockBytes());
  limits->sums_a_prefix_block = blocks.SumsAHead();
  HYDRANT_ASSIGN_OR_RETURN(
      limits->num_prefix_blocks,
      HowMany("prefix_cache_memory_bytes", options.prefix_cache_memory_bytes, block, options));
  HYDRANT_ASSIGN_OR_RETURN(limits->num_host_pages,
                           HowMany("context_memory_bytes", options.context_memory_bytes,
                                   static_cast<int64_t>(layout.BytesWithState()), options));
  limits->max_offloaded_caches = std::min(
      kMaxOffloadedCaches, limits->num_host_pages / (limits->num_layers * limits->num_kv_heads));
  HYDRANT_ASSIGN_OR_RETURN(limits->num_swap_pages,
                           HowMany("swap_space_bytes", options.swap_space_bytes,
                                   static_cast<int64_t>(layout.BytesWithState()), options));
  if (limits->num_swap_pages == 0) return absl::OkStatus();
  if (limits->num_swap_pages > std::numeric_limits<int32_t>::max() - limits->num_host_pages) {
    return absl::InvalidArgumentError(
        fmt::format("swap_space_bytes: {} and context_memory_bytes {} are more pages than 2^31",
                    options.swap_space_bytes, options.context_memory_bytes));
  }
  limits->num_host_pages += limits->num_swap_pages;
  limits->max_offloaded_caches += limits->max_num_seqs;
  return absl::OkStatus();
}

std::optional<int64_t> RequestedBlocks(const EngineOptions& options, const KvLayout& layout) {
  if (options.num_blocks_override.has_value()) return *options.num_blocks_override;
  if (options.kv_cache_memory_bytes == 0) return std::nullopt;
  return options.kv_cache_memory_bytes / static_cast<int64_t>(layout.PageBytes());
}

absl::Status CheckPoolFits(const EngineOptions& options, const KvLayout& layout,
                           const EngineLimits& limits, Backend* backend) {
  HYDRANT_ASSIGN_OR_RETURN(const DeviceMemory memory, backend->Memory());
  const bool on_host = !IsGpu(backend->Name());
  const int64_t pool = limits.num_blocks * static_cast<int64_t>(layout.PageBytes()) +
                       limits.table_entries * static_cast<int64_t>(sizeof(PageIds));
  const int64_t bookkeeping =
      limits.table_entries * kHostBytesPerEntry + limits.num_blocks * kHostBytesPerBlock;
  const int64_t host = HostBytes(options);
  const int64_t device = on_host ? host : static_cast<int64_t>(memory.total_bytes);
  if (!on_host && pool > device) return PoolTooLarge(options, limits, pool, device, "the device's");
  const int64_t of_host = on_host ? pool + bookkeeping : bookkeeping;
  return of_host > host ? PoolTooLarge(options, limits, of_host, host, "the host's")
                        : absl::OkStatus();
}

absl::StatusOr<int64_t> AutomaticBlocks(const EngineOptions& options, const KvLayout& layout,
                                        const EngineLimits& limits, Backend* backend) {
  HYDRANT_ASSIGN_OR_RETURN(const DeviceMemory memory, backend->Memory());
  const auto page = static_cast<int64_t>(layout.PageBytes());
  if (!IsGpu(backend->Name())) {
    const int64_t limit = options.kv_cache_memory_limit > 0
                              ? options.kv_cache_memory_limit
                              : static_cast<int64_t>(memory.free_bytes / 4);
    return std::min({UsefulBlocks(limits, layout), MaxBlocks(layout), limit / page});
  }
  HYDRANT_ASSIGN_OR_RETURN(const int64_t bytes, DeviceBytes(options, memory));
  constexpr auto kEntry = static_cast<int64_t>(sizeof(PageIds));
  const int64_t tables = TableEntries(limits, 0) * kEntry;
  const int64_t per_block = TableEntries(limits, 1) * kEntry - tables;
  return std::min({UsefulBlocks(limits, layout), MaxBlocks(layout),
                   std::max<int64_t>(bytes - tables, 0) / (page + per_block)});
}

absl::Status SetPool(const EngineOptions& options, int64_t blocks, KvLayout* layout,
                     EngineLimits* limits) {
  const int64_t least = int64_t{limits->num_layers} * limits->num_kv_heads;
  if (blocks < least) {
    return absl::InvalidArgumentError(
        fmt::format("kv_cache_memory_bytes: the pool would hold {} pages of {} bytes; at least {} "
                    "(one for every KV head of every layer), {}, are needed",
                    blocks, layout->PageBytes(), least,
                    FormatByteSize(least * static_cast<int64_t>(layout->PageBytes()))));
  }
  if (const int64_t most = MaxBlocks(*layout); blocks > most) {
    return absl::ResourceExhaustedError(
        fmt::format("{}: {} pages of {} bytes are more than can be told apart, the limit is {}",
                    PoolOption(options), blocks, layout->PageBytes(), most));
  }
  layout->num_blocks = static_cast<int>(blocks);
  limits->num_blocks = layout->num_blocks;
  limits->slab = SlabShape::Of(*layout);
  limits->table_entries = TableEntries(*limits, blocks);
  return absl::OkStatus();
}

}  // namespace hydrant
