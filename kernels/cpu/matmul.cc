#include "kernels/cpu/matmul.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/matmul_weight.h"
#include "kernels/cpu/parallel_rows.h"

namespace hydrant::cpu {
namespace {

bool MachineHasAmxInt8() {
  constexpr uint32_t kAmxInt8 = 1u << 25;  // CPUID.(7,0):EDX
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kAmxInt8);
}

void Overlay(const MatmulKernels& from, MatmulKernels* onto) {
  if (from.f32) onto->f32 = from.f32;
  if (from.f16) onto->f16 = from.f16;
  if (from.bf16_widened) onto->bf16_widened = from.bf16_widened;
  if (from.f8) onto->f8 = from.f8;
  if (from.bf16) onto->bf16 = from.bf16;
  if (from.round_bf16) onto->round_bf16 = from.round_bf16;
  if (from.blocks) onto->blocks = from.blocks;
  if (from.blocks_tiled) onto->blocks_tiled = from.blocks_tiled;
  if (from.blocks_split) onto->blocks_split = from.blocks_split;
  if (from.quantize) onto->quantize = from.quantize;
}

MatmulKernels ChooseKernels() {
  const Isa isa = DetectIsa();
  MatmulKernels kernels = MatmulKernelsAvx2();
  const bool vnni = isa >= Isa::kAvx512 && __builtin_cpu_supports("avx512vnni");
  if (isa >= Isa::kAvx512) Overlay(MatmulKernelsAvx512(), &kernels);
  if (vnni) Overlay(MatmulKernelsAvx512Vnni(), &kernels);
  if (isa >= Isa::kAvx512Bf16) Overlay(MatmulKernelsAvx512Bf16(), &kernels);
  if (isa >= Isa::kAmx) Overlay(MatmulKernelsAmxBf16(), &kernels);
  if (isa >= Isa::kAmx && vnni && MachineHasAmxInt8()) Overlay(MatmulKernelsAmxInt8(), &kernels);
  return kernels;
}

const MatmulKernels& Kernels() {
  static const MatmulKernels kernels = ChooseKernels();
  return kernels;
}

// Grows, never shrinks: a decode step allocates nothing once the largest batch has been seen.
class Arena {
 public:
  uint8_t* Get(size_t bytes) {
    if (bytes > bytes_) {
      buffer_ = AllocateAligned(bytes);
      bytes_ = buffer_ == nullptr ? 0 : bytes;
    }
    return buffer_.get();
  }

 private:
  AlignedBytes buffer_;
  size_t bytes_ = 0;
};

size_t NumTiles(int m) { return (static_cast<size_t>(m) + kTileRows - 1) / kTileRows; }

QuantizedRows CarveQuantized(int m, int cols, Arena& arena) {
  const size_t blocks = NumTiles(m) * (cols / kBlock) * kTileRows;
  uint8_t* p = arena.Get(blocks * (64 + 2 * sizeof(float) + 2 * sizeof(int32_t)));
  QuantizedRows rows;
  rows.quants = p;
  rows.scales = reinterpret_cast<float*>(p + blocks * 64);
  rows.scaled_sums = rows.scales + blocks;
  rows.half_sums = reinterpret_cast<int32_t*>(rows.scaled_sums + blocks);
  return rows;
}

// Calls convert(first_row, end_row) over all rows, in parallel where that pays.
template <typename Convert>
void ConvertRows(int m, int cols, ThreadPool& pool, const Convert& convert) {
  constexpr int64_t kAlone = 16384;  // values one thread converts sooner than it wakes another
  if (static_cast<int64_t>(m) * cols <= kAlone) return convert(0, m);
  constexpr int kRows = 4;
  pool.ParallelFor((m + kRows - 1) / kRows,
                   [&](int task, int) { convert(task * kRows, std::min(m, (task + 1) * kRows)); });
}

// How a multiplication is cut into tasks: panels of a segment by rows of x.
struct Cut {
  int panels;  // a task
  int rows;    // a task
};

Cut CutOf(int m, int num_panels, int cols, int threads) {
  constexpr int kTasksPerThread = 4;
  constexpr int kPanelStep = 4;       // what the few-row kernels take at once
  constexpr int kRowStep = 96;        // a whole number of every kernel's rows: 4, 6, 8, 12, 16, 32
  constexpr int kRowBytes = 1 << 20;  // of converted activations: they stay in the second cache
  const int most_rows = std::clamp(kRowBytes / (4 * cols) / kRowStep, 1, 6) * kRowStep;
  const int row_tasks = (m + most_rows - 1) / most_rows;
  const int rows = ((m + row_tasks - 1) / row_tasks + kRowStep - 1) / kRowStep * kRowStep;
  const int panel_tasks = std::max(1, (threads * kTasksPerThread + row_tasks - 1) / row_tasks);
  int panels = (num_panels + panel_tasks - 1) / panel_tasks;
  panels = (panels + kPanelStep - 1) / kPanelStep * kPanelStep;
  return {panels, rows};
}

using Kernel = void (*)(const PanelArgs&);

// The kernel for block weights. The first two give the same bits, so a batch-invariant backend may
// take either.
Kernel BlocksKernel(int m, bool batch_invariant) {
  constexpr int kTiledMinRows = 6;
  constexpr int kSplitMinRows = 32;
  const MatmulKernels& kernels = Kernels();
  if (kernels.blocks_split && m >= kSplitMinRows && !batch_invariant) return kernels.blocks_split;
  if (kernels.blocks_tiled && m >= kTiledMinRows) return kernels.blocks_tiled;
  return kernels.blocks;
}

Kernel KernelOf(PanelFormat format, bool round_activations, int m, bool batch_invariant) {
  const MatmulKernels& kernels = Kernels();
  switch (format) {
    case PanelFormat::kF32:
      return kernels.f32;
    case PanelFormat::kF16:
      return kernels.f16;
    case PanelFormat::kBF16:
      return round_activations && kernels.bf16 ? kernels.bf16 : kernels.bf16_widened;
    case PanelFormat::kF8:
      return kernels.f8;
    case PanelFormat::kBlocks:
      return BlocksKernel(m, batch_invariant);
  }
  return nullptr;
}

// Activations in the form a kernel reads, made once for all segments.
void ConvertFor(Kernel kernel, const MatmulArgs& args, ThreadPool& pool, PanelArgs* out) {
  thread_local Arena quantized_arena;
  thread_local Arena bf16_arena;
  const MatmulKernels& kernels = Kernels();
  const int cols = args.weight->cols();
  if ((kernel == kernels.blocks || kernel == kernels.blocks_tiled) &&
      out->quantized.quants == nullptr) {
    out->quantized = CarveQuantized(args.m, cols, quantized_arena);
    ConvertRows(args.m, cols, pool, [&](int first, int end) {
      kernels.quantize(static_cast<const float*>(args.x), cols, first, end, out->quantized);
    });
  }
  const bool split = kernel == kernels.blocks_split;
  if ((kernel == kernels.bf16 || split) && out->x_bf16 == nullptr) {
    const size_t values =
        NumTiles(args.m) * kTileRows * ((static_cast<size_t>(cols) + 31) / 32 * 32);
    auto* rounded = reinterpret_cast<uint16_t*>(bf16_arena.Get(values * (split ? 4 : 2)));
    auto* rest = split ? rounded + values : nullptr;
    ConvertRows(args.m, cols, pool, [&](int first, int end) {
      kernels.round_bf16(static_cast<const float*>(args.x), cols, first, end, rounded, rest);
    });
    out->x_bf16 = rounded;
    out->x_bf16_rest = rest;
  }
}

void AddBias(const MatmulArgs& args, ThreadPool& pool) {
  const size_t n = args.weight->rows();
  ParallelRows(pool, args.m, args.weight->rows(), [&](int row) {
    float* y = args.y + row * n;
    for (size_t j = 0; j < n; ++j) y[j] += args.bias[j];
  });
}

uint8_t* ThreadScratch(int cols) {
  thread_local Arena arena;
  return arena.Get(MatmulScratchBytes(cols));
}

void MatmulSegment(const Segment& segment, Kernel kernel, PanelArgs args, int m, ThreadPool& pool) {
  args.dtype = segment.dtype;
  args.panels = segment.panels.get();
  args.panel_bytes = segment.panel_bytes;
  args.rows = segment.rows;
  args.y += segment.first_row;
  const int num_panels = segment.NumPanels();
  const Cut cut = CutOf(m, num_panels, args.cols, pool.num_threads());
  const int panel_tasks = (num_panels + cut.panels - 1) / cut.panels;
  const int row_tasks = (m + cut.rows - 1) / cut.rows;
  pool.ParallelFor(panel_tasks * row_tasks, [&](int task, int) {
    PanelArgs part = args;
    part.first_panel = task / row_tasks * cut.panels;
    part.end_panel = std::min(num_panels, part.first_panel + cut.panels);
    part.first_row = task % row_tasks * cut.rows;
    part.end_row = std::min(m, part.first_row + cut.rows);
    part.scratch = ThreadScratch(args.cols);
    part.scratch_bytes = MatmulScratchBytes(args.cols);
    kernel(part);
  });
}

}  // namespace

// Room for one panel taken apart for the int8 tiles, or two split into terms of bf16.
size_t MatmulScratchBytes(int cols) {
  constexpr size_t kUsual = size_t{192} << 10;
  constexpr size_t kSplitBytes = 4096;  // of a block of two panels
  return std::max(kUsual, (static_cast<size_t>(cols) / kBlock + 2) * kSplitBytes);
}

void Matmul(const MatmulArgs& args, bool batch_invariant, ThreadPool& pool) {
  if (args.m <= 0) return;
  const auto& weight = static_cast<const PackedWeight&>(*args.weight);
  PanelArgs panel_args{};
  panel_args.cols = weight.cols();
  panel_args.x = static_cast<const float*>(args.x);
  panel_args.y = args.y;
  panel_args.y_stride = weight.rows();
  panel_args.accumulate = args.accumulate;
  for (const Segment& segment : weight.segments()) {
    const Kernel kernel =
        KernelOf(segment.format, weight.round_activations(), args.m, batch_invariant);
    ConvertFor(kernel, args, pool, &panel_args);
    MatmulSegment(segment, kernel, panel_args, args.m, pool);
  }
  if (args.bias != nullptr) AddBias(args, pool);
}

void Embed(const EmbedArgs& args, ThreadPool& pool) {
  const auto& table = static_cast<const PackedWeight&>(*args.table);
  constexpr int kRows = 8;
  pool.ParallelFor((args.m + kRows - 1) / kRows, [&](int task, int) {
    for (int i = task * kRows; i < std::min(args.m, (task + 1) * kRows); ++i) {
      const int row = static_cast<int>(args.ids[i]);
      auto segment = table.segments().begin();
      while (row >= segment->first_row + segment->rows) ++segment;
      const int in_segment = row - segment->first_row;
      float* out = args.out + static_cast<size_t>(i) * table.cols();
      float* unpacked =
          args.accumulate ? reinterpret_cast<float*>(ThreadScratch(table.cols())) : out;
      UnpackRow(segment->format, segment->dtype,
                segment->panels.get() + segment->panel_bytes * (in_segment / kPanelRows),
                in_segment % kPanelRows, table.cols(), unpacked);
      if (args.accumulate) {
        for (int j = 0; j < table.cols(); ++j) out[j] += args.scale * unpacked[j];
      } else if (args.scale != 1.0f) {
        for (int j = 0; j < table.cols(); ++j) out[j] *= args.scale;
      }
    }
  });
}

}  // namespace hydrant::cpu
