#include "kernels/cpu/matmul/matmul.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/isa/parallel_rows.h"
#include "kernels/cpu/matmul/matmul_parts.h"

namespace hydrant::cpu {
namespace {

// Up to this many values, one thread converts faster than it could wake another.
constexpr int64_t kConvertedAlone = 16384;

// Calls convert(first_row, end_row) over all rows, in parallel where that pays.
template <typename Convert>
void ConvertRows(int m, int cols, ThreadPool& pool, const Convert& convert) {
  if (static_cast<int64_t>(m) * cols <= kConvertedAlone) return convert(0, m);
  const int rows = m >= 2 * kTileRows ? kTileRows : 4;
  pool.ParallelForRanges((m + rows - 1) / rows, [&](int task, int) {
    convert(task * rows, std::min(m, (task + 1) * rows));
  });
}

// As ConvertRows, with convert(range). The rows of a tile share cache lines, which would bounce
// between two threads, so few rows are cut by blocks.
template <typename Convert>
void ConvertBlocks(int m, int cols, ThreadPool& pool, const Convert& convert) {
  constexpr int kTaskBlocks = 8, kPartsOfThread = 2;
  const int num_blocks = cols / kBlock;
  if (m >= 2 * kTileRows) {
    return ConvertRows(m, cols, pool, [&](int first, int end) {
      convert(ConvertRange{first, end, 0, num_blocks});
    });
  }
  const bool alone = static_cast<int64_t>(m) * cols <= kConvertedAlone;
  const int most = alone ? 1 : pool.num_threads() * kPartsOfThread;
  const int tasks = std::clamp(num_blocks / kTaskBlocks, 1, most);
  const auto begin = [&](int task) {
    return task == tasks ? num_blocks : num_blocks / kTaskBlocks * task / tasks * kTaskBlocks;
  };
  if (tasks == 1) return convert(ConvertRange{0, m, 0, num_blocks});
  pool.ParallelForRanges(tasks, [&](int task, int) {
    convert(ConvertRange{0, m, begin(task), begin(task + 1)});
  });
}

// The kernels for many rows process two panels at once, each with much work: more tasks
// balance the threads better.
constexpr int kTasksPerThreadOfMany = 12;
constexpr int kPanelStepOfBlocks = 2;  // panels per call of a block kernel, or one

// Rows per task of the kernels for many rows. Each task unpacks its panels again, so there are few
// tasks by rows; their activations may come from L3.
int RowsOfManyTask(int m, int row_bytes) {
  constexpr int kMaxBytes = 2 << 20;
  const int most_rows = std::max(kMaxBytes / row_bytes / kTileRows, 6) * kTileRows;
  const int row_tasks = (m + most_rows - 1) / most_rows;
  return (m + row_tasks * kTileRows - 1) / (row_tasks * kTileRows) * kTileRows;
}

// Rows per task of the bf16 tile kernels. Tiles multiply faster than L3 delivers operands: each
// thread takes its own rows, which it has rounded itself, through all panels, and few enough that
// they stay in L2. Each thread unpacks the panels itself, which does not pay for fewer rows.
int RowsOfOwn(int m, int threads) {
  constexpr int kMaxRows = 256, kLeastRows = 128;
  const int turns = (m + kMaxRows * threads - 1) / (kMaxRows * threads);
  const int parts = std::clamp(turns * threads, 1, std::max(1, m / kLeastRows));
  const int step = 2 * kTileRows;
  return ((m + parts - 1) / parts + step - 1) / step * step;
}

// How a multiplication is cut into tasks: panels of a segment by rows of x.
struct Cut {
  int panels;            // per task
  int rows;              // per task
  bool by_rows = false;  // consecutive tasks share their rows, not their panels
};

// About `wanted` panels per task, a multiple of `step`, such that the busiest thread has the fewest
// panels; the largest of several such numbers.
int EvenPanels(int wanted, int step, int num_panels, int row_tasks, int threads) {
  int best = step, least = std::numeric_limits<int>::max();
  for (int panels = step; panels < wanted + step; panels += step) {
    const int tasks = (num_panels + panels - 1) / panels * row_tasks;
    const int most = (tasks + threads - 1) / threads * panels;
    if (most > least) continue;
    best = panels;
    least = most;
  }
  return best;
}

Cut CutOf(MatmulKernel kernel, PanelFormat format, int m, int num_panels, int cols, int threads) {
  const MatmulKernels& kernels = ChosenMatmulKernels();
  const bool in_bf16 = kernel == kernels.blocks_bf16;
  const bool many = kernel == kernels.blocks_8_many;
  const int rows = in_bf16 ? RowsOfOwn(m, threads)
                   : many  ? RowsOfManyTask(m, cols)
                           : RowsOfTask(m, cols);
  const int row_tasks = (m + rows - 1) / rows;
  const int tasks = threads * (many ? kTasksPerThreadOfMany : kTasksPerThread);
  const int panel_tasks = std::max(1, (tasks + row_tasks - 1) / row_tasks);
  const int step = format == PanelFormat::kBlocks ? kPanelStepOfBlocks : kPanelStep;
  const int wanted = (num_panels + panel_tasks - 1) / panel_tasks;
  return {EvenPanels(wanted, step, num_panels, row_tasks, threads), rows, in_bf16};
}

// Converts activations to the form that a kernel reads, once for all segments.
void ConvertFor(ActivationForm form, const MatmulArgs& args, ThreadPool& pool, PanelArgs* out) {
  const MatmulKernels& kernels = ChosenMatmulKernels();
  const int cols = args.weight->cols();
  const auto* x = static_cast<const float*>(args.x);
  if (form == ActivationForm::kQuantized && out->quantized.quants == nullptr) {
    out->quantized = QuantizedSpace(NumTiles(args.m), cols, 2);
    ConvertBlocks(args.m, cols, pool, [&](const ConvertRange& range) {
      kernels.quantize(x + static_cast<size_t>(range.first_row) * cols, cols, range,
                       out->quantized);
    });
  }
  if (form == ActivationForm::kQuantized8 && out->quantized_8.quants == nullptr) {
    out->quantized_8 = QuantizedSpace(NumTiles(args.m), cols, 1);
    ConvertBlocks(args.m, cols, pool, [&](const ConvertRange& range) {
      kernels.quantize_8(x + static_cast<size_t>(range.first_row) * cols, cols, range,
                         out->quantized_8);
    });
  }
  if (form == ActivationForm::kInterleaved8 && out->interleaved.quants == nullptr) {
    out->interleaved = InterleavedSpace(NumTiles(args.m), cols);
    ConvertRows(args.m, cols, pool, [&](int first, int end) {
      kernels.quantize_8_many(x + static_cast<size_t>(first) * cols, cols, first, end,
                              out->interleaved);
    });
  }
  if (form == ActivationForm::kBf16 && out->x_bf16 == nullptr) {
    uint16_t* const rounded = Bf16Space(NumTiles(args.m), cols);
    ConvertRows(args.m, cols, pool, [&](int first, int end) {
      kernels.round_bf16(x + static_cast<size_t>(first) * cols, cols, first, end, rounded);
    });
    out->x_bf16 = rounded;
  }
}

void AddBias(const MatmulArgs& args, ThreadPool& pool) {
  const size_t n = args.weight->rows();
  ParallelRows(pool, args.m, args.weight->rows(), [&](int row) {
    float* y = args.y + row * n;
    for (size_t j = 0; j < n; ++j) y[j] += args.bias[j];
  });
}

void MatmulSegment(const Segment& segment, MatmulKernel kernel, PanelArgs args, int m,
                   ThreadPool& pool) {
  args.dtype = segment.dtype;
  args.panels = segment.panels.get();
  args.panel_bytes = segment.panel_bytes;
  args.rows = segment.rows;
  args.y += segment.first_row;
  const int num_panels = segment.NumPanels();
  const Cut cut = CutOf(kernel, segment.format, m, num_panels, args.cols, pool.num_threads());
  const int panel_tasks = (num_panels + cut.panels - 1) / cut.panels;
  const int row_tasks = (m + cut.rows - 1) / cut.rows;
  pool.ParallelForRanges(panel_tasks * row_tasks, [&](int task, int) {
    PanelArgs part = args;
    part.first_panel = (cut.by_rows ? task % panel_tasks : task / row_tasks) * cut.panels;
    part.end_panel = std::min(num_panels, part.first_panel + cut.panels);
    part.first_row = (cut.by_rows ? task / panel_tasks : task % row_tasks) * cut.rows;
    part.end_row = std::min(m, part.first_row + cut.rows);
    part.scratch = PanelScratch(args.cols);
    part.scratch_bytes = MatmulScratchBytes(args.cols);
    kernel(part);
  });
}

}  // namespace

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
    const MatmulKernel kernel =
        MatmulKernelFor(segment.format, weight.round_activations(), args.m, batch_invariant);
    ConvertFor(FormFor(kernel), args, pool, &panel_args);
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
          args.accumulate ? reinterpret_cast<float*>(PanelScratch(table.cols())) : out;
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
