// Element types and the block formats of quantised weights. Sizes only; conversions
// live beside the kernels.
#ifndef HYDRANT_KERNELS_DTYPE_H_
#define HYDRANT_KERNELS_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hydrant {

// The block formats are GGUF's, except kF8_E4M3: a row is a whole number of blocks of
// BlockElements() values. Context files store these numbers.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ2_K,
  kQ3_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kF8_E4M3,  // in no file format: an fp32 scale, then 128 e4m3fn values (engine/model/hf_fp8.h)
  kE4M3      // in pages only: e4m3fn values without a scale (kernels/page_row.h)
};

struct DTypeTraits {
  std::string_view name;
  int block_elements;  // values in a block, 1 for plain types
  int block_bytes;     // bytes of a block
};

constexpr DTypeTraits TraitsOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {"f32", 1, 4};
    case DType::kF16:
      return {"f16", 1, 2};
    case DType::kBF16:
      return {"bf16", 1, 2};
    case DType::kQ4_0:
      return {"q4_0", 32, 18};
    case DType::kQ4_1:
      return {"q4_1", 32, 20};
    case DType::kQ5_0:
      return {"q5_0", 32, 22};
    case DType::kQ5_1:
      return {"q5_1", 32, 24};
    case DType::kQ8_0:
      return {"q8_0", 32, 34};
    case DType::kQ4_K:
      return {"q4_k", 256, 144};
    case DType::kQ5_K:
      return {"q5_k", 256, 176};
    case DType::kQ6_K:
      return {"q6_k", 256, 210};
    case DType::kQ2_K:
      return {"q2_k", 256, 84};
    case DType::kQ3_K:
      return {"q3_k", 256, 110};
    case DType::kIQ4_NL:
      return {"iq4_nl", 32, 18};
    case DType::kIQ4_XS:
      return {"iq4_xs", 256, 136};
    case DType::kMXFP4:
      return {"mxfp4", 32, 17};
    case DType::kF8_E4M3:
      return {"f8_e4m3", 128, 132};
    case DType::kE4M3:
      return {"e4m3", 1, 1};
  }
  return {"?", 1, 0};
}

constexpr std::string_view DTypeName(DType dtype) { return TraitsOf(dtype).name; }
constexpr bool Is16Bits(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }
constexpr int BlockElements(DType dtype) { return TraitsOf(dtype).block_elements; }

// Bytes of `count` values; count is a whole number of blocks. Host code only: the traits hold a
// string, nvcc cannot evaluate its length, and it silently drops the code that follows.
constexpr size_t BytesOf(DType dtype, size_t count) {
  const DTypeTraits t = TraitsOf(dtype);
  return count / t.block_elements * t.block_bytes;
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_DTYPE_H_
