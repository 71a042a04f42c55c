// Query, key or value rows of a prompt layer between operations: fp32, or 16-bit elements where the
// backend keeps them so (Backend::ArenaDType). A pointer to fp32 converts implicitly. Borrowed;
// plain data on host and device.
#ifndef HYDRANT_KERNELS_ARENA_ROWS_H_
#define HYDRANT_KERNELS_ARENA_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/dtype.h"

namespace hydrant {

template <typename Void>
struct ArenaPointer {
  using Float = std::conditional_t<std::is_const_v<Void>, const float, float>;

  Void* data = nullptr;
  DType dtype = DType::kF32;  // or kF16, kBF16

  constexpr ArenaPointer() = default;
  constexpr ArenaPointer(std::nullptr_t) {}                // NOLINT: implicit, as for a pointer
  constexpr ArenaPointer(Float* values) : data(values) {}  // NOLINT
  constexpr ArenaPointer(Void* memory, DType of) : data(memory), dtype(of) {}
  template <typename Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>) constexpr ArenaPointer(  // NOLINT
      const ArenaPointer<Other>& rows)
      : data(rows.data), dtype(rows.dtype) {}

  // REQUIRES: dtype is kF32
  constexpr Float* f32() const { return static_cast<Float*>(data); }
  constexpr int64_t ElementBytes() const { return dtype == DType::kF32 ? 4 : 2; }
  constexpr ArenaPointer operator+(int64_t elements) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    if (data == nullptr) return *this;
    return {static_cast<Byte*>(data) + elements * ElementBytes(), dtype};
  }
  friend constexpr bool operator==(const ArenaPointer& rows, std::nullptr_t) {
    return rows.data == nullptr;
  }
};

using ArenaRows = ArenaPointer<const void>;
using MutableArenaRows = ArenaPointer<void>;

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_ARENA_ROWS_H_
