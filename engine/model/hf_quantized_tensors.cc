#include "engine/model/hf_quantized_tensors.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/hf_fp8.h"
#include "engine/model/hf_int4.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Method = HfQuantization::Method;

constexpr char kWeight[] = ".weight";

bool IsInt4(const HfQuantization& q) {
  return q.method == Method::kGptq || q.method == Method::kAwq;
}

// What is before one of the endings; empty where there is none.
std::string StemOf(const std::string& name, std::initializer_list<std::string_view> endings) {
  for (const std::string_view ending : endings) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return "";
}

bool WasInt4(const HfQuantization& q, const RawTensors& tensors, const std::string& stem) {
  return IsInt4(q) && !stem.empty() && tensors.has(stem + ".qweight");
}

absl::StatusOr<TensorView> FindInt4(const HfQuantization& q, const RawTensors& tensors,
                                    const std::string& stem) {
  Int4Tensors parts;
  HYDRANT_ASSIGN_OR_RETURN(parts.qweight, tensors.find(stem + ".qweight"));
  HYDRANT_ASSIGN_OR_RETURN(parts.qzeros, tensors.find(stem + ".qzeros"));
  HYDRANT_ASSIGN_OR_RETURN(parts.scales, tensors.find(stem + ".scales"));
  if (q.method == Method::kGptq && tensors.has(stem + ".g_idx")) {
    HYDRANT_ASSIGN_OR_RETURN(parts.g_idx, tensors.find(stem + ".g_idx"));
  }
  return Int4View(q, stem, parts);
}

absl::StatusOr<TensorView> FindFp8(const HfQuantization& q, const RawTensors& tensors,
                                   const RawTensor& weight, const std::string& stem) {
  std::string scale_name = stem + ".weight_scale_inv";
  if (!tensors.has(scale_name)) scale_name = stem + ".weight_scale";
  HYDRANT_ASSIGN_OR_RETURN(const RawTensor scale, tensors.find(scale_name));
  return Fp8View(q, weight, scale_name, scale);
}

absl::StatusOr<bool> IsZeros(const RawTensors& tensors, const std::string& name) {
  HYDRANT_ASSIGN_OR_RETURN(const RawTensor tensor, tensors.find(name));
  return std::all_of(tensor.bytes.begin(), tensor.bytes.end(), [](uint8_t b) { return b == 0; });
}

}  // namespace

bool HasTensor(const HfQuantization& quantization, const RawTensors& tensors,
               const std::string& name) {
  return tensors.has(name) || WasInt4(quantization, tensors, StemOf(name, {kWeight}));
}

absl::StatusOr<TensorView> FindTensorOf(const HfQuantization& quantization,
                                        const RawTensors& tensors, const std::string& name) {
  const std::string stem = StemOf(name, {kWeight});
  if (WasInt4(quantization, tensors, stem)) return FindInt4(quantization, tensors, stem);
  HYDRANT_ASSIGN_OR_RETURN(const RawTensor tensor, tensors.find(name));
  if (quantization.method == Method::kFp8 && tensor.type == "F8_E4M3" && !stem.empty())
    return FindFp8(quantization, tensors, tensor, stem);
  const std::optional<DType> dtype = FloatTypeOf(tensor);
  if (dtype.has_value()) return TensorView{*dtype, tensor.shape, tensor.bytes};
  return absl::UnimplementedError(absl::StrCat("tensor ", Quoted(name), " has dtype ", tensor.type,
                                               "; F32, F16 and BF16 are supported"));
}

absl::StatusOr<std::vector<std::string>> FamilyNames(const HfQuantization& quantization,
                                                     const RawTensors& tensors,
                                                     const std::vector<std::string>& present) {
  std::vector<std::string> names;
  for (const std::string& name : present) {
    if (IsInt4(quantization)) {
      if (const std::string stem = StemOf(name, {".qweight"}); !stem.empty()) {
        names.push_back(absl::StrCat(stem, kWeight));
        continue;
      }
      if (WasInt4(quantization, tensors, StemOf(name, {".qzeros", ".scales", ".g_idx"}))) continue;
      if (WasInt4(quantization, tensors, StemOf(name, {".bias"}))) {
        HYDRANT_ASSIGN_OR_RETURN(const bool zeros, IsZeros(tensors, name));
        if (zeros) continue;
      }
    }
    if (quantization.method == Method::kFp8) {
      const std::string stem = StemOf(name, {".weight_scale_inv", ".weight_scale", ".input_scale"});
      if (!stem.empty() && tensors.has(absl::StrCat(stem, kWeight))) continue;
    }
    names.push_back(name);
  }
  return names;
}

}  // namespace hydrant
