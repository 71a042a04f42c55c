#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/matmul_weight.h"
#include "kernels/status_macros.h"
#include "kernels/weight_parts.h"

namespace hydrant::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

PanelFormat FormatOf(DType kept) {
  switch (kept) {
    case DType::kF32:
      return PanelFormat::kF32;
    case DType::kF16:
      return PanelFormat::kF16;
    case DType::kBF16:
      return PanelFormat::kBF16;
    case DType::kF8_E4M3:
      return PanelFormat::kF8;
    default:
      return PanelFormat::kBlocks;
  }
}

// A thread's scratch for packing a panel.
struct PackScratch {
  float* values;  // [16, cols]
  uint8_t* rows;  // [16, WeightRows::scratch_bytes()]
};

// Returns false if a value may not be finite.
bool PackPanelOf(const Segment& segment, const WeightRows& rows, int panel, PackScratch scratch) {
  DType dtypes[kPanelRows];
  const uint8_t* bytes[kPanelRows];
  const int num_rows = std::min(kPanelRows, segment.rows - panel * kPanelRows);
  for (int r = 0; r < num_rows; ++r) {
    const WeightRows::Row row = rows.Get(segment.first_row + panel * kPanelRows + r,
                                         scratch.rows + r * rows.scratch_bytes());
    dtypes[r] = row.dtype;
    bytes[r] = row.bytes;
  }
  return PackPanel(segment.format, segment.dtype, dtypes, bytes, num_rows, rows.cols(),
                   scratch.values, segment.panels.get() + segment.panel_bytes * panel);
}

absl::Status CheckPanelFinite(const Segment& segment, const WeightRows& rows, int panel) {
  const int end = std::min(segment.rows, (panel + 1) * kPanelRows);
  for (int row = panel * kPanelRows; row < end; ++row)
    HYDRANT_RETURN_IF_ERROR(rows.CheckFinite(segment.first_row + row));
  return absl::OkStatus();
}

absl::StatusOr<Segment> PackSegment(const WeightRows& rows, DType kept, int first_row, int num_rows,
                                    ThreadPool& pool) {
  const int cols = rows.cols();
  Segment segment;
  segment.format = FormatOf(kept);
  segment.dtype = kept;
  segment.first_row = first_row;
  segment.rows = num_rows;
  segment.panel_bytes = PanelBytes(segment.format, kept, cols);
  const size_t bytes = segment.panel_bytes * segment.NumPanels();
  segment.panels = AllocatePanels(bytes);
  const size_t value_bytes = static_cast<size_t>(kPanelRows) * cols * sizeof(float);
  const size_t scratch_bytes = value_bytes + kPanelRows * rows.scratch_bytes();
  AlignedBytes scratch = AllocateAligned(scratch_bytes * pool.num_threads());
  if (segment.panels == nullptr || scratch == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a weight of ", segment.rows,
                                                     " x ", cols, ": ", bytes, " bytes"));
  }
  std::atomic<int> suspect = -1;  // a panel that may hold a value that is not finite
  pool.ParallelFor(segment.NumPanels(), [&](int panel, int thread) {
    uint8_t* own = scratch.get() + scratch_bytes * thread;
    if (!PackPanelOf(segment, rows, panel, {reinterpret_cast<float*>(own), own + value_bytes}))
      suspect = panel;
  });
  if (suspect >= 0) HYDRANT_RETURN_IF_ERROR(CheckPanelFinite(segment, rows, suspect));
  return segment;
}

}  // namespace

AlignedBytes AllocateAligned(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  auto* p = static_cast<uint8_t*>(std::aligned_alloc(alignment, rounded));
  if (p != nullptr && alignment == kHugePage) madvise(p, rounded, MADV_HUGEPAGE);  // only a hint
  return AlignedBytes(p);
}

std::shared_ptr<uint8_t> AllocatePanels(size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr size_t kSlabBytes = 0;  // a slab per weight: lets the sanitizer see its end
#else
  constexpr size_t kSlabBytes = size_t{64} << 20;
#endif
  struct Slab {
    AlignedBytes memory;
    size_t used = 0;
  };
  static std::mutex mutex;  // guards `latest` and its slab; no member, so not a Mutex
  static std::weak_ptr<Slab> latest;
  if (bytes > kSlabBytes / 4)
    return std::shared_ptr<uint8_t>(AllocateAligned(bytes).release(), FreeDeleter());
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<Slab> slab = latest.lock();
  if (slab == nullptr || slab->used + bytes > kSlabBytes) {
    slab = std::make_shared<Slab>();
    slab->memory = AllocateAligned(kSlabBytes);
    if (slab->memory == nullptr) return nullptr;
    latest = slab;
  }
  uint8_t* panels = slab->memory.get() + slab->used;
  slab->used += (bytes + 63) / 64 * 64;
  return std::shared_ptr<uint8_t>(std::move(slab), panels);
}

absl::StatusOr<std::unique_ptr<Weight>> PackWeight(std::span<const WeightPart> given,
                                                   WeightDType dtype,
                                                   bool /*batch_invariant: all paths are*/,
                                                   ThreadPool& pool) {
  HYDRANT_ASSIGN_OR_RETURN(const WeightRows rows, WeightRows::Make(given, dtype));
  const std::span<const WeightPart> parts = rows.parts();
  const auto kept = [&](size_t i) { return KeptDType(parts[i].dtype, dtype, parts[i].cols); };
  std::vector<Segment> segments;
  int first_row = 0;
  size_t bytes = 0;
  for (size_t first = 0; first < parts.size();) {
    size_t end = first;
    int num_rows = 0;
    for (; end < parts.size() && kept(end) == kept(first); ++end) num_rows += parts[end].rows;
    HYDRANT_ASSIGN_OR_RETURN(Segment segment,
                             PackSegment(rows, kept(first), first_row, num_rows, pool));
    first_row += num_rows;
    bytes += segment.panel_bytes * segment.NumPanels();
    segments.push_back(std::move(segment));
    first = end;
  }
  return std::make_unique<PackedWeight>(rows.rows(), rows.cols(), bytes,
                                        dtype == WeightDType::kBFloat16, std::move(segments));
}

}  // namespace hydrant::cpu
