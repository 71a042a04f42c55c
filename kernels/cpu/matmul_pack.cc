#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_weight.h"
#include "kernels/status_macros.h"
#include "kernels/weight_parts.h"

namespace hydrant::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

PanelFormat FormatOf(DType dtype, WeightDType weight_dtype) {
  if (weight_dtype == WeightDType::kFloat32) return PanelFormat::kF32;
  if (weight_dtype == WeightDType::kBFloat16) return PanelFormat::kBF16;
  switch (dtype) {
    case DType::kF32:
      return PanelFormat::kF32;
    case DType::kF16:
      return PanelFormat::kF16;
    case DType::kBF16:
      return PanelFormat::kBF16;
    default:
      return PanelFormat::kBlocks;
  }
}

// Parts that share a segment, and their rows counted through.
class RowSource {
 public:
  explicit RowSource(std::span<const WeightPart> parts) : parts_(parts) {}

  void Find(int row, DType* dtype, const uint8_t** data) const {
    size_t i = 0;
    while (row >= parts_[i].rows) row -= parts_[i++].rows;
    *dtype = parts_[i].dtype;
    *data = static_cast<const uint8_t*>(parts_[i].data) +
            row * BytesOf(parts_[i].dtype, parts_[i].cols);
  }

 private:
  std::span<const WeightPart> parts_;
};

absl::StatusOr<Segment> PackSegment(std::span<const WeightPart> parts, PanelFormat format,
                                    int first_row, ThreadPool& pool) {
  const int cols = parts[0].cols;
  Segment segment;
  segment.format = format;
  segment.dtype = parts[0].dtype;
  segment.first_row = first_row;
  for (const WeightPart& part : parts) segment.rows += part.rows;
  segment.panel_bytes = PanelBytes(format, segment.dtype, cols);
  const size_t bytes = segment.panel_bytes * segment.NumPanels();
  segment.panels = AllocatePanels(bytes);
  const size_t scratch_floats = static_cast<size_t>(kPanelRows) * cols;
  AlignedBytes scratch = AllocateAligned(scratch_floats * sizeof(float) * pool.num_threads());
  if (segment.panels == nullptr || scratch == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a weight of ", segment.rows,
                                                     " x ", cols, ": ", bytes, " bytes"));
  }
  const RowSource source(parts);
  pool.ParallelFor(segment.NumPanels(), [&](int panel, int thread) {
    DType dtypes[kPanelRows];
    const uint8_t* rows[kPanelRows];
    const int num_rows = std::min(kPanelRows, segment.rows - panel * kPanelRows);
    for (int r = 0; r < num_rows; ++r) source.Find(panel * kPanelRows + r, &dtypes[r], &rows[r]);
    PackPanel(format, segment.dtype, dtypes, rows, num_rows, cols,
              reinterpret_cast<float*>(scratch.get()) + scratch_floats * thread,
              segment.panels.get() + segment.panel_bytes * panel);
  });
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
  constexpr size_t kSlabBytes = 0;  // let the sanitizer see where each weight ends
#else
  constexpr size_t kSlabBytes = size_t{64} << 20;
#endif
  struct Slab {
    AlignedBytes memory;
    size_t used = 0;
  };
  static std::mutex mutex;
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
  HYDRANT_ASSIGN_OR_RETURN(const StoredParts stored, StoredParts::Make(given));
  const std::span<const WeightPart> parts = stored.get();
  std::vector<Segment> segments;
  int rows = 0;
  size_t bytes = 0;
  for (size_t first = 0; first < parts.size();) {
    const PanelFormat format = FormatOf(parts[first].dtype, dtype);
    size_t end = first + 1;
    while (end < parts.size() && FormatOf(parts[end].dtype, dtype) == format &&
           (format != PanelFormat::kBlocks || parts[end].dtype == parts[first].dtype)) {
      ++end;
    }
    HYDRANT_ASSIGN_OR_RETURN(Segment segment,
                             PackSegment(parts.subspan(first, end - first), format, rows, pool));
    rows += segment.rows;
    bytes += segment.panel_bytes * segment.NumPanels();
    segments.push_back(std::move(segment));
    first = end;
  }
  return std::make_unique<PackedWeight>(rows, parts[0].cols, bytes, dtype == WeightDType::kBFloat16,
                                        std::move(segments));
}

}  // namespace hydrant::cpu
