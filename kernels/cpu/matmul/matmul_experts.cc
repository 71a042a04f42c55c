#include "kernels/cpu/matmul/matmul_experts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/matmul/matmul_parts.h"

namespace hydrant::cpu {
namespace {

// The places of an expert that has any. In converted activations its rows begin with a tile.
struct Run {
  int expert;
  int first_place;
  int rows;
  int first_tile;
};

// The part of one segment of the weight that belongs to a run's expert.
struct Piece {
  int run;
  const Segment* segment;
  MatmulKernel kernel;
  int first_panel;  // in the segment
  int num_panels;
  int first_output;  // in the expert's outputs
};

struct Task {
  int piece;
  int first_panel, end_panel;  // in the piece
  int first_row, end_row;      // in the run
};

// The plan of one call; kept by the calling thread, so that a decode step does not allocate.
struct Plan {
  std::vector<Run> runs;
  std::vector<Piece> pieces;
  std::vector<Task> tasks;
  std::vector<int> tile_runs;         // the run of each tile
  bool forms[kActivationForms] = {};  // forms that kernels read, by ActivationForm

  bool Reads(ActivationForm form) const { return forms[static_cast<int>(form)]; }
};

void PlanRuns(const ExpertMatmulArgs& args, Plan* plan) {
  for (int e = 0; e < args.experts; ++e) {
    const int rows = args.offsets[e + 1] - args.offsets[e];
    if (rows == 0) continue;
    const int run = static_cast<int>(plan->runs.size());
    plan->runs.push_back({e, args.offsets[e], rows, static_cast<int>(plan->tile_runs.size())});
    plan->tile_runs.insert(plan->tile_runs.end(), NumTiles(rows), run);
  }
}

void PlanPieces(const ExpertMatmulArgs& args, bool batch_invariant, Plan* plan) {
  const auto& weight = static_cast<const PackedWeight&>(*args.weight);
  const std::vector<Segment>& segments = weight.segments();
  const int n = weight.rows() / args.experts;
  for (size_t run = 0; run < plan->runs.size(); ++run) {
    const int first = plan->runs[run].expert * n, end = first + n;
    auto segment = std::upper_bound(segments.begin(), segments.end(), first,
                                    [](int row, const Segment& s) { return row < s.first_row; });
    for (--segment; segment != segments.end() && segment->first_row < end; ++segment) {
      const int from = std::max(first, segment->first_row);
      const int to = std::min(end, segment->first_row + segment->rows);
      const MatmulKernel kernel = MatmulKernelFor(segment->format, weight.round_activations(),
                                                  plan->runs[run].rows, batch_invariant);
      plan->forms[static_cast<int>(FormFor(kernel))] = true;
      plan->pieces.push_back({.run = static_cast<int>(run),
                              .segment = &*segment,
                              .kernel = kernel,
                              .first_panel = (from - segment->first_row) / kPanelRows,
                              .num_panels = (to - from) / kPanelRows,
                              .first_output = from - first});
    }
  }
}

// Tasks of about equal work. A panel costs its loading, worth kReading rows, plus its rows.
void PlanTasks(int cols, int threads, Plan* plan) {
  constexpr int64_t kReading = 4;
  const auto rows_of = [&](const Piece& piece) {
    return RowsOfTask(plan->runs[piece.run].rows, cols);
  };
  int64_t work = 0;
  for (const Piece& piece : plan->pieces)
    work += piece.num_panels * (kReading + plan->runs[piece.run].rows);
  const int64_t share = work / (threads * kTasksPerThread) + 1;
  for (size_t i = 0; i < plan->pieces.size(); ++i) {
    const Piece& piece = plan->pieces[i];
    const int rows = plan->runs[piece.run].rows, row_step = rows_of(piece);
    const int64_t panels = share / (kReading + std::min(rows, row_step)) / kPanelStep + 1;
    const int panel_step = static_cast<int>(std::min<int64_t>(panels * kPanelStep, 1 << 20));
    for (int panel = 0; panel < piece.num_panels; panel += panel_step) {
      for (int row = 0; row < rows; row += row_step) {
        plan->tasks.push_back({static_cast<int>(i), panel,
                               std::min(piece.num_panels, panel + panel_step), row,
                               std::min(rows, row + row_step)});
      }
    }
  }
}

// x in the forms that the kernels read.
struct Activations {
  const float* floats = nullptr;  // [places, cols]
  QuantizedRows quantized = {};   // in this and the following forms each run begins with a tile
  QuantizedRows quantized_8 = {};
  InterleavedRows interleaved = {};
  uint16_t* bf16 = nullptr;
};

float* GatheredSpace(int places, int cols) {
  thread_local Arena arena;
  return reinterpret_cast<float*>(arena.Get(static_cast<size_t>(places) * cols * sizeof(float)));
}

// One task per tile: the rows of up to sixteen places of one expert.
Activations Convert(const ExpertMatmulArgs& args, const Plan& plan, ThreadPool& pool) {
  const MatmulKernels& kernels = ChosenMatmulKernels();
  const int cols = args.weight->cols(), num_tiles = static_cast<int>(plan.tile_runs.size());
  const bool floats = plan.Reads(ActivationForm::kFloats) && args.sources != nullptr;
  const bool quantized = plan.Reads(ActivationForm::kQuantized);
  const bool quantized_8 = plan.Reads(ActivationForm::kQuantized8);
  const bool interleaved = plan.Reads(ActivationForm::kInterleaved8);
  const bool bf16 = plan.Reads(ActivationForm::kBf16);
  const auto* x = static_cast<const float*>(args.x);
  Activations out;
  out.floats = x;
  float* gathered = floats ? GatheredSpace(args.places, cols) : nullptr;
  if (floats) out.floats = gathered;
  if (quantized) out.quantized = QuantizedSpace(num_tiles, cols, 2);
  if (quantized_8) out.quantized_8 = QuantizedSpace(num_tiles, cols, 1);
  if (interleaved) out.interleaved = InterleavedSpace(num_tiles, cols);
  if (bf16) out.bf16 = Bf16Space(num_tiles, cols);
  if (!floats && !quantized && !quantized_8 && !interleaved && !bf16) return out;
  const auto convert_tile = [&](int tile, int) {
    const Run& run = plan.runs[plan.tile_runs[tile]];
    const int first = (tile - run.first_tile) * kTileRows;
    for (int r = 0; r < std::min(kTileRows, run.rows - first); ++r) {
      const size_t place = run.first_place + first + r;
      const float* row = x + (args.sources == nullptr ? place : args.sources[place]) * cols;
      const int at = tile * kTileRows + r;
      if (floats) std::memcpy(gathered + place * cols, row, cols * sizeof(float));
      const ConvertRange of_row = {at, at + 1, 0, cols / kBlock};
      if (quantized) kernels.quantize(row, cols, of_row, out.quantized);
      if (quantized_8) kernels.quantize_8(row, cols, of_row, out.quantized_8);
      if (interleaved) kernels.quantize_8_many(row, cols, at, at + 1, out.interleaved);
      if (bf16) kernels.round_bf16(row, cols, at, at + 1, out.bf16);
    }
  };
  constexpr int64_t kAlone = 16384;  // values that one thread converts faster than it wakes another
  if (static_cast<int64_t>(args.places) * cols > kAlone) {
    pool.ParallelFor(num_tiles, convert_tile);
  } else {
    for (int tile = 0; tile < num_tiles; ++tile) convert_tile(tile, 0);
  }
  return out;
}

void RunTask(const ExpertMatmulArgs& args, const Plan& plan, const Activations& x,
             const Task& task) {
  const Piece& piece = plan.pieces[task.piece];
  const Run& run = plan.runs[piece.run];
  const int cols = args.weight->cols(), n = args.weight->rows() / args.experts;
  PanelArgs panels{};
  panels.dtype = piece.segment->dtype;
  panels.panels = piece.segment->panels.get() + piece.segment->panel_bytes * piece.first_panel;
  panels.panel_bytes = piece.segment->panel_bytes;
  panels.rows = piece.num_panels * kPanelRows;
  panels.cols = cols;
  panels.first_panel = task.first_panel;
  panels.end_panel = task.end_panel;
  panels.x = x.floats + static_cast<size_t>(run.first_place) * cols;
  if (x.quantized.quants != nullptr)
    panels.quantized = FromTile(x.quantized, run.first_tile, cols, 2);
  if (x.quantized_8.quants != nullptr)
    panels.quantized_8 = FromTile(x.quantized_8, run.first_tile, cols, 1);
  if (x.interleaved.quants != nullptr)
    panels.interleaved = FromTile(x.interleaved, run.first_tile, cols);
  if (x.bf16 != nullptr) panels.x_bf16 = x.bf16 + run.first_tile * Bf16TileElements(cols);
  panels.first_row = task.first_row;
  panels.end_row = task.end_row;
  panels.y = args.y + static_cast<size_t>(run.first_place) * n + piece.first_output;
  panels.y_stride = n;
  panels.scratch = PanelScratch(cols);
  panels.scratch_bytes = MatmulScratchBytes(cols);
  piece.kernel(panels);
  if (args.bias == nullptr) return;
  const float* bias = args.bias + static_cast<size_t>(run.expert) * n + piece.first_output;
  for (int row = task.first_row; row < task.end_row; ++row) {
    float* y = panels.y + static_cast<size_t>(row) * n;
    for (int j = task.first_panel * kPanelRows; j < task.end_panel * kPanelRows; ++j)
      y[j] += bias[j];
  }
}

}  // namespace

void ExpertMatmul(const ExpertMatmulArgs& args, bool batch_invariant, ThreadPool& pool) {
  if (args.places == 0) return;
  thread_local Plan plan;
  plan.runs.clear();
  plan.pieces.clear();
  plan.tasks.clear();
  plan.tile_runs.clear();
  std::fill(std::begin(plan.forms), std::end(plan.forms), false);
  PlanRuns(args, &plan);
  PlanPieces(args, batch_invariant, &plan);
  PlanTasks(args.weight->cols(), pool.num_threads(), &plan);
  const Plan& made = plan;  // the caller's plan: thread_local would name the worker's own
  const Activations x = Convert(args, made, pool);
  pool.ParallelForRanges(static_cast<int>(made.tasks.size()),
                         [&](int task, int) { RunTask(args, made, x, made.tasks[task]); });
}

}  // namespace hydrant::cpu
