// SavePrefix and LoadPrefix of every backend: compares every element of the blocks and of the
// arena, including untouched ones.
#include "kernels/ops/prefix_blocks.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/float16.h"
#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

struct Case {
  DType dtype;
  int num_layers, num_kv_heads, head_dim, count;
  int row_gap = 0;  // elements between a head's rows
  bool values = true;
};

constexpr int kNumBlocks = 9;

// The blocks as an array of elements of the dtype, converted to floats.
class HostBlocks {
 public:
  explicit HostBlocks(const Case& c) : case_(c) {}

  // [num_blocks, num_layers, 2, num_kv_heads, kPrefixBlockTokens, head_dim], as in the contract.
  size_t At(int block, int layer, int which, int head, int token, int i) const {
    size_t at = (static_cast<size_t>(block) * case_.num_layers + layer) * 2 + which;
    at = at * case_.num_kv_heads + head;
    at = at * kPrefixBlockTokens + token;
    return at * case_.head_dim + i;
  }
  size_t Size() const { return At(kNumBlocks, 0, 0, 0, 0, 0); }

 private:
  const Case case_;
};

template <typename Element>
float ToFloat(DType dtype, Element element) {
  if (dtype == DType::kF16) return F16ToFloat(static_cast<uint16_t>(element));
  if (dtype == DType::kBF16) return BF16ToFloat(static_cast<uint16_t>(element));
  return static_cast<float>(element);
}

class PrefixBlocksTest : public BackendTest {
 protected:
  template <typename Element>
  void Check(const Case& c) {
    const HostBlocks layout(c);
    const int rows = c.count * kPrefixBlockTokens + 3;  // of the arena; three belong to another run
    const int64_t row_stride = c.head_dim + c.row_gap;
    const int64_t stride = rows * row_stride + 5;
    const std::vector<float> k = RandomFloats(stride * c.num_kv_heads, 1),
                             v = RandomFloats(stride * c.num_kv_heads, 2);
    std::vector<int32_t> ids(kNumBlocks);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(c.head_dim));
    ids.resize(c.count);
    const int layer = c.num_layers - 1;

    auto device_k = Upload(k), device_v = Upload(v);
    auto device_ids = Upload(ids);
    auto memory = Upload(std::vector<Element>(layout.Size(), Element{42}));
    PrefixBlocksArgs args{.k = device_k.data(),
                          .v = c.values ? device_v.data() : nullptr,
                          .kv_head_stride = stride,
                          .row_stride = row_stride,
                          .blocks = device_ids.data(),
                          .count = c.count,
                          .layer = layer,
                          .pool = {.dtype = c.dtype,
                                   .num_layers = c.num_layers,
                                   .num_kv_heads = c.num_kv_heads,
                                   .head_dim = c.head_dim,
                                   .memory = memory.data()}};
    EXPECT_EQ(args.pool.BlockBytes() * kNumBlocks, layout.Size() * sizeof(Element));
    backend().SavePrefix(args);

    std::vector<Element> expected(layout.Size(), Element{42});
    auto loaded_k = Output(k.size()), loaded_v = Output(v.size());
    std::vector<float> expected_k(k.size(), kNan), expected_v = expected_k;
    for (int block = 0; block < c.count; ++block) {
      for (int head = 0; head < c.num_kv_heads; ++head) {
        for (int token = 0; token < kPrefixBlockTokens; ++token) {
          for (int i = 0; i < c.head_dim; ++i) {
            const size_t row =
                head * stride + (block * kPrefixBlockTokens + token) * row_stride + i;
            const size_t key = layout.At(ids[block], layer, 0, head, token, i);
            const size_t value = layout.At(ids[block], layer, 1, head, token, i);
            expected[key] = Stored<Element>(c.dtype, k[row]);
            expected_k[row] = ToFloat(c.dtype, expected[key]);
            if (!c.values) continue;
            expected[value] = Stored<Element>(c.dtype, v[row]);
            expected_v[row] = ToFloat(c.dtype, expected[value]);
          }
        }
      }
    }
    EXPECT_EQ(memory.Read(), expected);
    args.k = loaded_k.data();
    args.v = c.values ? loaded_v.data() : nullptr;
    backend().LoadPrefix(args);
    ExpectSame(loaded_k.Read(), expected_k, "keys");
    ExpectSame(loaded_v.Read(), expected_v, "values");
    EXPECT_EQ(memory.Read(), expected);
  }

  template <typename Element>
  static Element Stored(DType dtype, float value) {
    if (dtype == DType::kF16) return static_cast<Element>(FloatToF16(value));
    if (dtype == DType::kBF16) return static_cast<Element>(FloatToBF16(value));
    return static_cast<Element>(value);
  }
};

TEST_P(PrefixBlocksTest, SavesAndLoadsOneLayerOfTheNamedBlocks) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Case& c :
         {Case{dtype, 1, 1, 2, 1}, Case{dtype, 3, 2, 34, 5}, Case{dtype, 2, 3, 64, 9},
          Case{dtype, 2, 1, 128, 4}, Case{dtype, 2, 2, 8, 0}, Case{dtype, 2, 3, 64, 4, 128},
          Case{dtype, 3, 2, 34, 2, 7}, Case{dtype, 2, 2, 64, 3, 0, false},
          Case{dtype, 2, 1, 10, 3, 13, false}}) {
      SCOPED_TRACE(testing::Message() << DTypeName(dtype) << ", head_dim " << c.head_dim << ", "
                                      << c.count << " blocks");
      dtype == DType::kF32 ? Check<float>(c) : Check<uint16_t>(c);
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(PrefixBlocksTest);

}  // namespace
}  // namespace hydrant
