#include "engine/model/hf_quantized_tensors.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/hf_fp8.h"
#include "engine/model/hf_int4.h"
#include "engine/model/hf_stacked_experts.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Method = HfQuantization::Method;

constexpr char kWeight[] = ".weight";

bool IsInt4(const HfQuantization& q) {
  return q.method == Method::kGptq || q.method == Method::kAwq;
}

// `name` without the first matching ending; empty if none matches.
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

bool WasMxfp4(const HfQuantization& q, const RawTensors& tensors, const std::string& stem) {
  return q.method == Method::kMxfp4 && !stem.empty() && tensors.has(stem + "_blocks");
}

// Whether the stem is a float tensor with the matrices of all experts.
bool AreStacked(const std::string& stem) {
  return stem.ends_with(".experts.gate_up_proj") || stem.ends_with(".experts.down_proj");
}

absl::StatusOr<TensorView> FindMxfp4(const RawTensors& tensors, const std::string& stem) {
  HYDRANT_ASSIGN_OR_RETURN(const RawTensor blocks, tensors.find(stem + "_blocks"));
  HYDRANT_ASSIGN_OR_RETURN(const RawTensor scales, tensors.find(stem + "_scales"));
  return Mxfp4View(stem, blocks, scales);
}

// The family's name of a tensor with all experts; empty if it is not one.
std::string StackedName(const HfQuantization& q, const RawTensors& tensors,
                        const std::string& name) {
  if (const std::string stem = StemOf(name, {"_blocks"}); WasMxfp4(q, tensors, stem))
    return stem + kWeight;
  if (AreStacked(name)) return name + kWeight;
  const std::string stem = StemOf(name, {"_bias"});
  return AreStacked(stem) ? stem + ".bias" : "";
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
  if (WasMxfp4(quantization, tensors, stem)) return FindMxfp4(tensors, stem);
  if (AreStacked(stem) && tensors.has(stem)) {
    HYDRANT_ASSIGN_OR_RETURN(const RawTensor stacked, tensors.find(stem));
    return TransposedView(stem, stacked);
  }
  const std::string of_bias = StemOf(name, {".bias"});
  const bool stacked_bias = AreStacked(of_bias) && !tensors.has(name);
  HYDRANT_ASSIGN_OR_RETURN(const RawTensor tensor,
                           tensors.find(stacked_bias ? of_bias + "_bias" : name));
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
    if (WasMxfp4(quantization, tensors, StemOf(name, {"_scales"}))) continue;
    if (const std::string stacked = StackedName(quantization, tensors, name); !stacked.empty()) {
      names.push_back(stacked);
      continue;
    }
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
