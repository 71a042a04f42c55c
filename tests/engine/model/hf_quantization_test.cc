#include "engine/model/hf_quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace hydrant {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Method = HfQuantization::Method;

// Published configurations.
json Fp8() {  // Qwen3-8B-FP8
  return json::parse(R"({"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8",
    "weight_block_size":[128,128],"modules_to_not_convert":["lm_head"]})");
}
json Compressed() {  // RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic
  return json::parse(R"({"config_groups":{"group_0":{"input_activations":{"block_structure":null,
    "dynamic":true,"group_size":null,"num_bits":8,"observer":null,"observer_kwargs":{},
    "strategy":"token","symmetric":true,"type":"float"},"output_activations":null,
    "targets":["Linear"],"weights":{"block_structure":null,"dynamic":false,"group_size":null,
    "num_bits":8,"observer":"minmax","observer_kwargs":{},"strategy":"channel","symmetric":true,
    "type":"float"}}},"format":"float-quantized","global_compression_ratio":1.24,
    "ignore":["lm_head"],"kv_cache_scheme":null,"quant_method":"compressed-tensors",
    "quantization_status":"frozen"})");
}
json Gptq() {  // TheBloke/Llama-2-7B-Chat-GPTQ
  return json::parse(R"({"bits":4,"group_size":128,"damp_percent":0.01,"desc_act":true,
    "static_groups":false,"sym":true,"true_sequential":true,"model_name_or_path":null,
    "model_file_base_name":"model","quant_method":"gptq"})");
}
json Awq() {  // Qwen2.5-7B-Instruct-AWQ
  return json::parse(R"({"bits":4,"group_size":128,"modules_to_not_convert":null,
    "quant_method":"awq","version":"gemm","zero_point":true})");
}

absl::StatusOr<HfQuantization> Read(const json& config) {
  const json root = {{"quantization_config", config}};
  HfFields fields(root);
  HfQuantization quantization;
  const absl::Status status = ReadHfQuantization(fields, &quantization);
  if (!status.ok()) return status;
  return quantization;
}

TEST(HfQuantizationTest, ReadsPublishedConfigs) {
  const auto fp8 = Read(Fp8());
  ASSERT_TRUE(fp8.ok()) << fp8.status();
  EXPECT_EQ(fp8->method, Method::kFp8);
  EXPECT_EQ(fp8->block_rows, 128);
  EXPECT_EQ(fp8->block_cols, 128);

  const auto compressed = Read(Compressed());
  ASSERT_TRUE(compressed.ok()) << compressed.status();
  EXPECT_EQ(compressed->method, Method::kFp8);
  EXPECT_EQ(compressed->block_rows, 0);

  const auto gptq = Read(Gptq());
  ASSERT_TRUE(gptq.ok()) << gptq.status();
  EXPECT_EQ(gptq->method, Method::kGptq);
  EXPECT_EQ(gptq->group_size, 128);
  EXPECT_EQ(gptq->zero_offset, 1);

  const auto awq = Read(Awq());
  ASSERT_TRUE(awq.ok()) << awq.status();
  EXPECT_EQ(awq->method, Method::kAwq);
  EXPECT_EQ(awq->group_size, 128);
}

TEST(HfQuantizationTest, ReadsTheVariants) {
  json gptq = Gptq();
  gptq["checkpoint_format"] = "gptq_v2";
  gptq["group_size"] = -1;
  const auto v2 = Read(gptq);
  ASSERT_TRUE(v2.ok()) << v2.status();
  EXPECT_EQ(v2->zero_offset, 0);
  EXPECT_EQ(v2->group_size, 0);

  const json old_awq = json::parse(R"({"w_bit":4,"q_group_size":64,"zero_point":true,
    "version":"GEMM","quant_method":"awq"})");
  const auto awq = Read(old_awq);
  ASSERT_TRUE(awq.ok()) << awq.status();
  EXPECT_EQ(awq->group_size, 64);

  json blocks = Compressed();
  blocks["config_groups"]["group_0"]["weights"]["strategy"] = "block";
  blocks["config_groups"]["group_0"]["weights"]["block_structure"] = {64u, 128u};
  const auto block = Read(blocks);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(block->block_rows, 64);
  EXPECT_EQ(block->block_cols, 128);

  HfQuantization none;
  const json root = {{"quantization_config", nullptr}};
  HfFields fields(root);
  EXPECT_TRUE(ReadHfQuantization(fields, &none).ok());
  EXPECT_EQ(none.method, Method::kNone);
}

struct BadConfig {
  json (*base)();
  std::string patch;  // merged into it
  std::string message;
};

TEST(HfQuantizationTest, UnknownFieldsAreRefusedByName) {
  const BadConfig cases[] = {
      {Fp8, R"({"quant_method":"bitsandbytes"})",
       "quant_method is 'bitsandbytes'; supported are fp8, compressed-tensors, gptq, awq"},
      {Fp8, R"({"quant_method":null})", "quant_method is ''"},
      {Fp8, R"({"fmt":"e5m2"})", "fmt is 'e5m2', only 'e4m3'"},
      {Fp8, R"({"weight_block_size":[128]})", "weight_block_size is '[128]', wanted an array"},
      {Fp8, R"({"weight_block_size":[0,128]})", "weight_block_size is"},
      {Fp8, R"({"rotation":true})", "'rotation' is 'true'; it is not known"},
      {Compressed, R"({"format":"pack-quantized"})", "format is 'pack-quantized'"},
      {Compressed, R"({"kv_cache_scheme":{"num_bits":8}})", "'kv_cache_scheme' is"},
      {Compressed, R"({"sparsity_config":{"format":"sparse-24-bitmask"}})", "'sparsity_config' is"},
      {Compressed, R"({"config_groups":null})", "config_groups is missing"},
      {Compressed, R"({"config_groups":{"group_1":{}}})", "an object of one group"},
      {Compressed, R"({"config_groups":{"group_0":{"weights":null}}})", "weights is missing"},
      {Compressed, R"({"config_groups":{"group_0":{"output_activations":{"num_bits":8}}}})",
       "config_groups: 'output_activations' is"},
      {Compressed, R"({"config_groups":{"group_0":{"weights":{"num_bits":4}}}})",
       "config_groups: weights: num_bits is 4, only 8"},
      {Compressed, R"({"config_groups":{"group_0":{"weights":{"type":"int"}}}})", "type is 'int'"},
      {Compressed, R"({"config_groups":{"group_0":{"weights":{"strategy":"group"}}}})",
       "strategy is 'group'"},
      {Compressed, R"({"config_groups":{"group_0":{"weights":{"symmetric":false}}}})",
       "symmetric is false"},
      {Compressed, R"({"config_groups":{"group_0":{"weights":{"actorder":"static"}}}})",
       "'actorder' is"},
      {Gptq, R"({"bits":3})", "bits is 3, only 4"},
      {Gptq, R"({"group_size":null})", "group_size is missing"},
      {Gptq, R"({"group_size":-2})", "group_size is '-2', wanted -1, or 1 to"},
      {Gptq, R"({"checkpoint_format":"marlin"})", "checkpoint_format is 'marlin'"},
      {Gptq, R"({"is_marlin_format":true})", "'is_marlin_format' is 'true'"},
      {Gptq, R"({"dynamic":{"-:.*":{}}})", "'dynamic' is"},
      {Gptq, R"({"pack_dtype":"int16"})", "'pack_dtype' is"},
      {Awq, R"({"bits":8})", "bits is 8, only 4"},
      {Awq, R"({"version":"gemv"})", "version is 'gemv', only 'gemm'"},
      {Awq, R"({"zero_point":false})", "zero_point is false"},
  };
  for (const BadConfig& c : cases) {
    json config = c.base();
    config.merge_patch(json::parse(c.patch));
    const auto read = Read(config);
    ASSERT_FALSE(read.ok()) << c.patch;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("quantization_config: "));
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(c.message)) << c.patch;
  }
  const json root = {{"quantization_config", 4}};
  HfFields fields(root);
  HfQuantization quantization;
  EXPECT_THAT(std::string(ReadHfQuantization(fields, &quantization).message()),
              HasSubstr("quantization_config is '4', wanted an object"));
}

}  // namespace
}  // namespace hydrant
