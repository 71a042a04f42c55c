#include "engine/model/dummy_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "kernels/dequantize.h"
#include "kernels/float16.h"
#include "kernels/weight_parts.h"

namespace hydrant {
namespace {

HfConfig SmallConfig(DType dtype) {
  const auto config = ParseHfConfig(
      R"({"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":128,
    "num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":1000,"initializer_range":0.05})");
  HfConfig result = config.value();
  result.weight_dtype = dtype;
  return result;
}

std::vector<float> Floats(const TensorView& view) {
  const auto count = static_cast<int>(view.NumElements());
  const absl::StatusOr<WeightRows> rows = WeightRows::Make(
      std::vector<WeightPart>{{view.dtype, view.bytes.data(), 1, count, view.normals}},
      WeightDType::kStored);
  std::vector<uint8_t> scratch(rows->scratch_bytes());
  const WeightRows::Row row = rows->Get(0, scratch.data());
  std::vector<float> values(count);
  DequantizeRow(row.dtype, row.bytes, count, values.data());
  return values;
}

TEST(DummyNormalsTest, MomentsAreThoseOfANormal) {
  std::vector<float> values(1 << 20);
  DummyNormals(42, "moments", 0, values);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0;
  int beyond_two = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double v = values[i];
    m1 += v;
    m2 += v * v;
    m3 += v * v * v;
    m4 += v * v * v * v;
    if (i > 0) neighbours += v * values[i - 1];
    beyond_two += std::fabs(v) > 2;
  }
  const double n = static_cast<double>(values.size());
  // Five standard errors of each moment.
  EXPECT_NEAR(m1 / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(m2 / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(m3 / n, 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(m4 / n, 2.9, 5 * std::sqrt(96 / n));  // twelve uniforms: 3 - 6/5/12
  EXPECT_NEAR(neighbours / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(beyond_two / n, 0.0455, 0.0015);
}

TEST(DummyNormalsTest, ValueDependsOnSeedNameAndIndexAlone) {
  std::vector<float> whole(100), part(40), other(100);
  DummyNormals(1, "a", 0, whole);
  DummyNormals(1, "a", 60, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 60));
  DummyNormals(2, "a", 0, other);
  EXPECT_NE(whole, other);
  DummyNormals(1, "b", 0, other);
  EXPECT_NE(whole, other);
}

// Pins the stream: benchmarks compare runs across machines and versions. The values come from an
// independent ten-line Python script with unbounded integers.
TEST(DummyNormalsTest, StreamIsPinned) {
  std::vector<float> values(4);
  DummyNormals(7, "model.norm.weight", 1000, values);
  EXPECT_THAT(values, testing::ElementsAre(1.5444793701171875f, 0.5526123046875f,
                                           1.4558868408203125f, 1.3504180908203125f));
}

TEST(DummySourceTest, WeightsHaveTheConfiguredSpread) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto source = MakeDummySource(SmallConfig(dtype), "", 5);
    const auto embedding = source->Embedding();
    ASSERT_TRUE(embedding.ok());
    EXPECT_EQ(embedding->dtype, dtype);
    EXPECT_EQ(embedding->shape, (std::vector<int64_t>{1000, 64}));
    double squares = 0;
    for (const float v : Floats(*embedding)) squares += double{v} * v;
    EXPECT_NEAR(std::sqrt(squares / 64000), 0.05, 0.001);
    const auto layer = source->Layer(2);
    ASSERT_TRUE(layer.ok());
    EXPECT_EQ(Floats(layer->attn_norm), std::vector<float>(64, 1.0f));
    EXPECT_EQ(layer->attn_norm.dtype, DType::kF32);
    EXPECT_EQ(layer->down.shape, (std::vector<int64_t>{64, 128}));
    EXPECT_NE(Floats(layer->gate), Floats(layer->up));
    EXPECT_NE(source->Output()->normals->key, embedding->normals->key);
    EXPECT_FALSE(source->Layer(3).ok());
  }
}

TEST(DummySourceTest, OpensThroughFolderOrFile) {
  for (const char* path :
       {"tests/data/model/hf_single", "tests/data/model/hf_single/config.json"}) {
    const auto source = OpenModel(path, LoadFormat::kDummy, 1);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->folder(), "tests/data/model/hf_single");
    EXPECT_EQ((*source)->config().vocab_size, 20);
  }
}

TEST(DummySourceTest, OtherFamiliesHaveTheirTensors) {
  const auto opt = OpenModel("tests/data/engine/tiny_opt", LoadFormat::kDummy, 1);
  ASSERT_TRUE(opt.ok()) << opt.status();
  EXPECT_EQ((*opt)->Positions()->shape, (std::vector<int64_t>{320, 64}));
  EXPECT_NE((*opt)->Positions()->normals->key, (*opt)->Embedding()->normals->key);
  EXPECT_EQ(Floats(*(*opt)->FinalNormBias()), std::vector<float>(64, 0.0f));
  const LayerTensors layer = *(*opt)->Layer(1);
  EXPECT_EQ(Floats(layer.up_bias), std::vector<float>(96, 0.0f));
  EXPECT_EQ(Floats(layer.attn_norm), std::vector<float>(64, 1.0f));
  EXPECT_FALSE(layer.gate.Exists());
  const auto neox = OpenModel("tests/data/engine/tiny_neox", LoadFormat::kDummy, 1);
  ASSERT_TRUE(neox.ok()) << neox.status();
  EXPECT_FALSE((*neox)->Positions()->Exists());
  EXPECT_EQ((*neox)->Layer(0)->wqkv.shape, (std::vector<int64_t>{192, 64}));
  EXPECT_EQ(Floats((*neox)->Layer(0)->bqkv), std::vector<float>(192, 0.0f));
}

TEST(DummySourceTest, ExpertsDiffer) {
  for (const char* folder :
       {"tests/data/engine/tiny_mixtral", "tests/data/engine/tiny_granite_moe"}) {
    const auto source = OpenModel(folder, LoadFormat::kDummy, 1);
    ASSERT_TRUE(source.ok()) << source.status();
    const Experts& experts = *(*source)->config().experts;
    const LayerTensors layer = *(*source)->Layer(1);
    EXPECT_EQ(layer.router.shape, (std::vector<int64_t>{experts.count, 32}));
    EXPECT_FALSE(layer.up.Exists() || layer.down.Exists());
    ASSERT_EQ(layer.experts.size(), static_cast<size_t>(experts.count));
    std::set<uint64_t> keys;
    for (const ExpertTensors& expert : layer.experts) {
      EXPECT_EQ(expert.up.shape, (std::vector<int64_t>{experts.intermediate_size, 32}));
      EXPECT_EQ(expert.down.shape, (std::vector<int64_t>{32, experts.intermediate_size}));
      for (const TensorView* view : {&expert.gate, &expert.up, &expert.down})
        keys.insert(view->normals->key);
    }
    EXPECT_EQ(keys.size(), 3 * layer.experts.size());
  }
}

// A tensor equals its stream at every dtype.
TEST(DummySourceTest, TensorsAreTheirNormals) {
  const auto source = MakeDummySource(SmallConfig(DType::kF32), "", 9);
  const TensorView wo = source->Layer(1)->wo;
  std::vector<float> values(wo.NumElements());
  DummyNormals(9, "model.layers.1.self_attn.o_proj.weight", 0, values);
  for (float& value : values) value *= 0.05f;
  EXPECT_EQ(Floats(wo), values);
  const auto rounded = MakeDummySource(SmallConfig(DType::kBF16), "", 9);
  for (float& value : values) value = BF16ToFloat(FloatToBF16(value));
  EXPECT_EQ(Floats(rounded->Layer(1)->wo), values);
}

}  // namespace
}  // namespace hydrant
