#include "engine/model/hf_quantization.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using nlohmann::json;

// The tensors show which modules are not quantised; the other fields describe calibration and the
// kernels of other programs.
constexpr IdleField kFp8Idle[] = {{"activation_scheme"},      {"modules_to_not_convert"},
                                  {"ignored_layers"},         {"dequantize"},
                                  {"scale_fmt", "\"ue8m0\""}, {"kv_cache_scheme", "null"}};
constexpr IdleField kCompressedIdle[] = {
    {"ignore"},  {"quantization_status"},   {"global_compression_ratio"},
    {"version"}, {"sparsity_config", "{}"}, {"transform_config", "{}"}};
constexpr IdleField kGroupIdle[] = {{"targets"}, {"input_activations"}, {"format"}};
constexpr IdleField kGroupWeightsIdle[] = {{"observer"}, {"observer_kwargs"}, {"group_size"}};
constexpr IdleField kGptqIdle[] = {
    // Fields of calibration.
    {"desc_act"},  // g_idx has it
    {"sym"},       // qzeros have it
    {"static_groups"},
    {"true_sequential"},
    {"damp_percent"},
    {"damp_auto_increment"},
    {"act_group_aware"},
    {"mse"},
    {"dataset"},
    {"tokenizer"},
    {"batch_size"},
    {"model_seqlen"},
    {"pad_token_id"},
    {"block_name_to_quantize"},
    {"module_name_preceding_first_block"},
    {"modules_in_block_to_quantize"},
    {"model_name_or_path"},
    {"model_file_base_name"},
    {"quantizer"},
    {"meta"},
    {"lm_head"},
    // Fields for the kernels of other programs.
    {"backend"},
    {"use_cuda_fp16"},
    {"use_exllama"},
    {"disable_exllama"},
    {"exllama_config"},
    {"max_input_length"},
    {"cache_block_outputs"},
    {"is_marlin_format", "false"},
    // Overrides for single modules must be empty.
    {"dynamic", "{}"},
    {"pack_dtype", "\"int32\""}};
constexpr IdleField kAwqIdle[] = {{"backend"},         {"modules_to_not_convert"},
                                  {"do_fuse"},         {"fuse_max_seq_len"},
                                  {"modules_to_fuse"}, {"exllama_config"}};

constexpr IdleField kMxfp4Idle[] = {{"modules_to_not_convert"}, {"dequantize"}};

absl::Status RefuseUnread(const HfFields& fields, std::span<const IdleField> idle) {
  return fields.RefuseUnread({&idle, 1});
}

absl::Status WantInt(HfFields& fields, const char* key, int wanted) {
  int value = wanted;
  HYDRANT_RETURN_IF_ERROR(ReadInt(fields, key, false, &value));
  if (value == wanted) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(key, " is ", value, ", only ", wanted, " is supported"));
}

// Compares in lower case; `wanted` is in lower case.
absl::Status WantString(HfFields& fields, const char* key, const char* wanted) {
  std::string value = wanted;
  HYDRANT_RETURN_IF_ERROR(ReadString(fields, key, &value));
  std::string lower = value;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == wanted) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(key, " is ", Quoted(value), ", only ", Quoted(wanted), " is supported"));
}

absl::Status ReadBlock(HfFields& fields, const char* key, HfQuantization* q) {
  const json* block = fields.Find(key);
  if (block == nullptr) return absl::OkStatus();
  constexpr uint64_t kMax = std::numeric_limits<int>::max();
  const auto is_size = [](const json& v) {
    return v.is_number_unsigned() && v.get<uint64_t>() >= 1 && v.get<uint64_t>() <= kMax;
  };
  if (!block->is_array() || block->size() != 2 || !is_size((*block)[0]) || !is_size((*block)[1]))
    return WrongField(key, *block, "an array of two positive integers");
  q->block_rows = (*block)[0].get<int>();
  q->block_cols = (*block)[1].get<int>();
  return absl::OkStatus();
}

absl::Status ReadFp8(HfFields& fields, HfQuantization* q) {
  HYDRANT_RETURN_IF_ERROR(WantString(fields, "fmt", "e4m3"));
  HYDRANT_RETURN_IF_ERROR(ReadBlock(fields, "weight_block_size", q));
  return RefuseUnread(fields, kFp8Idle);
}

absl::Status ReadGroupWeights(HfFields& fields, HfQuantization* q) {
  HYDRANT_RETURN_IF_ERROR(WantInt(fields, "num_bits", 8));
  HYDRANT_RETURN_IF_ERROR(WantString(fields, "type", "float"));
  HYDRANT_RETURN_IF_ERROR(WantValue(fields, "symmetric", true, "only true is supported"));
  HYDRANT_RETURN_IF_ERROR(WantValue(fields, "dynamic", false, "weights are not dynamic"));
  std::string strategy;
  HYDRANT_RETURN_IF_ERROR(ReadString(fields, "strategy", &strategy));
  if (strategy != "tensor" && strategy != "channel" && strategy != "block") {
    return absl::UnimplementedError(
        absl::StrCat("strategy is ", Quoted(strategy), "; supported are tensor, channel, block"));
  }
  HYDRANT_RETURN_IF_ERROR(ReadBlock(fields, "block_structure", q));
  return RefuseUnread(fields, kGroupWeightsIdle);
}

// The format of llm-compressor. Several groups would mean several quantisations.
absl::Status ReadCompressed(HfFields& fields, HfQuantization* q) {
  HYDRANT_RETURN_IF_ERROR(WantString(fields, "format", "float-quantized"));
  const json* groups = fields.Find("config_groups");
  if (groups == nullptr) return absl::NotFoundError("config_groups is missing");
  if (!groups->is_object() || groups->size() != 1 || !groups->front().is_object())
    return WrongField("config_groups", *groups, "an object of one group");
  HfFields group(groups->front());
  const json* weights = group.Find("weights");
  if (weights == nullptr || !weights->is_object())
    return absl::NotFoundError("config_groups: weights is missing or not an object");
  HfFields of_weights(*weights);
  if (absl::Status s = ReadGroupWeights(of_weights, q); !s.ok())
    return WithContext(s, "config_groups: weights");
  if (absl::Status s = RefuseUnread(group, kGroupIdle); !s.ok())
    return WithContext(s, "config_groups");
  return RefuseUnread(fields, kCompressedIdle);
}

// -1: all columns. Otherwise blocks of 32 must lie in one group.
absl::Status ReadGroupSize(HfFields& fields, const char* key, HfQuantization* q) {
  const json* size = fields.Find(key);
  if (size == nullptr) return absl::NotFoundError(absl::StrCat(key, " is missing"));
  if (size->is_number_integer() && *size == -1) return absl::OkStatus();
  constexpr int kLimit = 1 << 20;
  if (!size->is_number_unsigned() || size->get<uint64_t>() < 1 || size->get<uint64_t>() > kLimit)
    return WrongField(key, *size, "-1, or 1 to 1048576");
  q->group_size = size->get<int>();
  return absl::OkStatus();
}

absl::Status ReadGptq(HfFields& fields, HfQuantization* q) {
  HYDRANT_RETURN_IF_ERROR(WantInt(fields, "bits", 4));
  HYDRANT_RETURN_IF_ERROR(ReadGroupSize(fields, "group_size", q));
  // Older files omit the format or use a newer program's name.
  std::string format = "gptq";
  HYDRANT_RETURN_IF_ERROR(ReadString(fields, "format", &format));
  HYDRANT_RETURN_IF_ERROR(ReadString(fields, "checkpoint_format", &format));
  if (format != "gptq" && format != "gptq_v2") {
    return absl::UnimplementedError(
        absl::StrCat("checkpoint_format is ", Quoted(format), "; supported are gptq, gptq_v2"));
  }
  // The first format stores zero points minus one.
  q->zero_offset = format == "gptq" ? 1 : 0;
  return RefuseUnread(fields, kGptqIdle);
}

absl::Status ReadAwq(HfFields& fields, HfQuantization* q) {
  for (const char* key : {"bits", "w_bit"}) HYDRANT_RETURN_IF_ERROR(WantInt(fields, key, 4));
  const char* group_size = fields.Find("q_group_size") != nullptr ? "q_group_size" : "group_size";
  HYDRANT_RETURN_IF_ERROR(ReadGroupSize(fields, group_size, q));
  HYDRANT_RETURN_IF_ERROR(WantString(fields, "version", "gemm"));
  HYDRANT_RETURN_IF_ERROR(WantValue(fields, "zero_point", true, "only true is supported"));
  return RefuseUnread(fields, kAwqIdle);
}

absl::Status ReadMxfp4(HfFields& fields, HfQuantization*) {
  return RefuseUnread(fields, kMxfp4Idle);
}

absl::Status ReadMethod(HfFields& fields, HfQuantization* q) {
  using Method = HfQuantization::Method;
  constexpr struct {
    const char* name;
    Method method;
    absl::Status (*read)(HfFields&, HfQuantization*);
  } kMethods[] = {{"fp8", Method::kFp8, ReadFp8},
                  {"compressed-tensors", Method::kFp8, ReadCompressed},
                  {"gptq", Method::kGptq, ReadGptq},
                  {"awq", Method::kAwq, ReadAwq},
                  {"mxfp4", Method::kMxfp4, ReadMxfp4}};
  std::string name;
  HYDRANT_RETURN_IF_ERROR(ReadString(fields, "quant_method", &name));
  std::string list;
  for (const auto& known : kMethods) {
    absl::StrAppend(&list, list.empty() ? "" : ", ", known.name);
    if (name != known.name) continue;
    q->method = known.method;
    return known.read(fields, q);
  }
  return absl::UnimplementedError(
      absl::StrCat("quant_method is ", Quoted(name), "; supported are ", list));
}

}  // namespace

absl::Status ReadHfQuantization(HfFields& root, HfQuantization* quantization) {
  constexpr char kKey[] = "quantization_config";
  const json* object = root.Find(kKey);
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return WrongField(kKey, *object, "an object");
  HfFields fields(*object);
  return WithContext(ReadMethod(fields, quantization), kKey);
}

}  // namespace hydrant
