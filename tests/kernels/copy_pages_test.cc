// CopyPages of every backend: compares every byte of both sides, including untouched pages.
#include "kernels/ops/copy_pages.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

// Arrays of the given numbers of pages and states, filled with random bytes.
struct Side {
  int pages, states;
  std::vector<uint8_t> keys, values, positions, scores, log_weights;

  Side(const KvLayout& layout, int data_pages, int state_pages, uint64_t seed)
      : pages(data_pages), states(state_pages) {
    const size_t slots = static_cast<size_t>(pages) * layout.block_size;
    const size_t state_slots = static_cast<size_t>(states) * layout.block_size;
    std::mt19937_64 random(seed);
    const auto fill = [&](std::vector<uint8_t>* array, size_t bytes) {
      array->resize(bytes);
      for (uint8_t& byte : *array) byte = static_cast<uint8_t>(random());
    };
    fill(&keys, BytesOf(layout.dtype, slots * layout.head_dim));
    fill(&values, keys.size());
    fill(&positions, slots * 4);
    fill(&scores, state_slots * 4);
    fill(&log_weights, state_slots * 8);
  }
  std::vector<std::vector<uint8_t>*> Arrays() {
    return {&keys, &values, &positions, &scores, &log_weights};
  }
};

// `to` after copying pages of `from` into it.
Side Copied(Side from, Side to, const std::vector<PageCopy>& copies) {
  const std::vector<std::vector<uint8_t>*> sources = from.Arrays(), targets = to.Arrays();
  for (size_t a = 0; a < sources.size(); ++a) {
    const bool state = a >= 3;
    const size_t bytes = sources[a]->size() / (state ? from.states : from.pages);
    EXPECT_EQ(bytes, targets[a]->size() / (state ? to.states : to.pages));
    for (const PageCopy& copy : copies) {
      const int32_t source = state ? copy.from.state : copy.from.data;
      const int32_t target = state ? copy.to.state : copy.to.data;
      if (target == kNotCopied) continue;
      std::copy_n(sources[a]->data() + source * bytes, bytes, targets[a]->data() + target * bytes);
    }
  }
  return to;
}

std::vector<int32_t> Shuffled(int count, uint32_t seed) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
  return ids;
}

class CopyPagesTest : public BackendTest {
 protected:
  // One side in the backend's memory.
  class Uploaded {
   public:
    Uploaded(CopyPagesTest* test, Side side) {
      for (std::vector<uint8_t>* array : side.Arrays()) arrays_.push_back(test->Upload(*array));
    }
    KvPages Pages(const KvLayout& layout) {
      return {.layout = layout,
              .keys = arrays_[0].data(),
              .values = arrays_[1].data(),
              .positions = reinterpret_cast<int32_t*>(arrays_[2].data()),
              .scores = reinterpret_cast<float*>(arrays_[3].data()),
              .log_weights = reinterpret_cast<float*>(arrays_[4].data())};
    }
    void Expect(Side side, const std::string& what) {
      for (size_t i = 0; i < arrays_.size(); ++i)
        EXPECT_EQ(arrays_[i].Read(), *side.Arrays()[i]) << what << ", array " << i;
    }

   private:
    std::vector<DeviceArray<uint8_t>> arrays_;
  };
};

TEST_P(CopyPagesTest, CopiesTheNamedPagesAndNothingElse) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const auto& [head_dim, block_size, count] :
         {std::array{64, 16, 1}, std::array{34, 3, 5}, std::array{2, 1, 9}, std::array{8, 4, 40},
          std::array{8, 4, 0}}) {
      const KvLayout layout = {.dtype = dtype, .head_dim = head_dim, .block_size = block_size};
      constexpr int kPages = 50, kStates = 70, kHostPages = 60;
      const std::vector<int32_t> pages = Shuffled(kPages, 1), states = Shuffled(kStates, 2);
      const std::vector<int32_t> host_pages = Shuffled(kHostPages, 3);
      std::vector<PageCopy> copies(count);
      for (int i = 0; i < count; ++i)
        copies[i] = {{pages[i], states[i]}, {host_pages[i], host_pages[i]}};
      if (count > 4) copies[2].to.data = copies[3].to.state = kNotCopied;
      if (count > 8) copies[2].from.data = copies[3].from.state = -1;  // nothing to copy from
      const Side pool(layout, kPages, kStates, 3), host(layout, kHostPages, kHostPages, 4);
      Uploaded device_pool(this, pool), device_host(this, host);
      auto device_copies = Upload(std::vector<PageCopy>(count));
      backend().CopyToDevice(device_copies.data(), copies.data(), count * sizeof(PageCopy));
      backend().CopyPages({.copies = device_copies.data(),
                           .count = count,
                           .from = device_pool.Pages(layout),
                           .to = device_host.Pages(layout)});
      const std::string what =
          "head_dim " + std::to_string(head_dim) + ", " + std::to_string(count) + " pages";
      device_pool.Expect(pool, what + ", from");
      device_host.Expect(Copied(pool, host, copies), what + ", to");
    }
  }
}

TEST_P(CopyPagesTest, WithinThePool) {
  const KvLayout layout = {.dtype = DType::kBF16, .head_dim = 16, .block_size = 4};
  constexpr int kPages = 20;
  const std::vector<PageCopy> copies = {{{3, 21}, {0, 0}},
                                        {{3, 22}, {19, 19}},
                                        {{7, 7}, {kNotCopied, 23}},
                                        {{11, 11}, {12, kNotCopied}}};
  const Side pool(layout, kPages, kPages + 5, 5);
  Uploaded device_pool(this, pool);
  auto device_copies = Upload(std::vector<PageCopy>(copies.size()));
  backend().CopyToDevice(device_copies.data(), copies.data(), copies.size() * sizeof(PageCopy));
  backend().CopyPages({.copies = device_copies.data(),
                       .count = static_cast<int>(copies.size()),
                       .from = device_pool.Pages(layout),
                       .to = device_pool.Pages(layout)});
  device_pool.Expect(Copied(pool, pool, copies), "the pool");
}

// In the pool a state is several lines of one array, scores first; in host memory scores and log
// weights are separate arrays. An array missing on one side is left alone.
TEST_P(CopyPagesTest, StateInLinesOfThePool) {
  constexpr int kBlockSize = 5, kLines = 40, kHostPages = 9;
  const KvLayout host = {.dtype = DType::kF16, .head_dim = 8, .block_size = kBlockSize};
  KvLayout pool = host;
  pool.log_weight_stride = kBlockSize;
  const auto random = [](size_t count, uint32_t seed) {
    std::mt19937 bits(seed);
    std::vector<float> floats(count);
    for (float& value : floats) value = static_cast<float>(bits() % 1000);
    return floats;
  };
  const std::vector<float> lines = random(kLines * kBlockSize, 1);
  const std::vector<float> scores = random(kHostPages * kBlockSize, 2);
  const std::vector<float> log_weights = random(2 * kHostPages * kBlockSize, 3);
  const std::vector<PageCopy> copies = {{{kNotCopied, 3}, {kNotCopied, 8}},
                                        {{kNotCopied, 6}, {kNotCopied, 0}},
                                        {{kNotCopied, kLines - 3}, {kNotCopied, 4}}};
  auto device_copies = Upload(std::vector<PageCopy>(copies.size()));
  backend().CopyToDevice(device_copies.data(), copies.data(), copies.size() * sizeof(PageCopy));
  for (const bool out : {true, false}) {
    for (const bool with_weights : {true, false}) {
      auto device_lines = Upload(lines);
      auto device_scores = Upload(scores), device_weights = Upload(log_weights);
      const KvPages there = {
          .layout = host, .scores = device_scores.data(), .log_weights = device_weights.data()};
      const KvPages here = {
          .layout = pool,
          .scores = device_lines.data(),
          .log_weights = with_weights ? device_lines.data() + kBlockSize : nullptr};
      std::vector<PageCopy> ways = copies;
      if (!out) {
        for (PageCopy& copy : ways) std::swap(copy.from, copy.to);
      }
      backend().CopyToDevice(device_copies.data(), ways.data(), ways.size() * sizeof(PageCopy));
      backend().CopyPages({.copies = device_copies.data(),
                           .count = static_cast<int>(ways.size()),
                           .from = out ? here : there,
                           .to = out ? there : here});
      std::vector<float> lines_after = lines, scores_after = scores, weights_after = log_weights;
      for (const PageCopy& copy : copies) {
        float* line = &lines_after[copy.from.state * kBlockSize];
        float* score = &scores_after[copy.to.state * kBlockSize];
        float* weights = &weights_after[copy.to.state * 2 * kBlockSize];
        for (int i = 0; i < kBlockSize; ++i) (out ? score : line)[i] = (out ? line : score)[i];
        for (int i = 0; with_weights && i < 2 * kBlockSize; ++i)
          (out ? weights : line + kBlockSize)[i] = (out ? line + kBlockSize : weights)[i];
      }
      EXPECT_EQ(device_lines.Read(), lines_after) << out << with_weights;
      EXPECT_EQ(device_scores.Read(), scores_after) << out << with_weights;
      EXPECT_EQ(device_weights.Read(), weights_after) << out << with_weights;
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(CopyPagesTest);

}  // namespace
}  // namespace hydrant
