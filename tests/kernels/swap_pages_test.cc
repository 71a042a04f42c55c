// SwapOutPages and SwapInPages of every backend: every byte of both sides is compared, that of the
// untouched pages included.
#include "kernels/ops/swap_pages.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

// The arrays of so many pages, filled with random bytes.
struct Side {
  std::vector<uint8_t> keys, values, positions, scores, log_weights;

  Side(const KvLayout& layout, int pages, uint64_t seed) {
    const size_t slots = static_cast<size_t>(pages) * layout.block_size;
    std::mt19937_64 random(seed);
    const auto fill = [&](std::vector<uint8_t>* array, size_t bytes) {
      array->resize(bytes);
      for (uint8_t& byte : *array) byte = static_cast<uint8_t>(random());
    };
    fill(&keys, BytesOf(layout.dtype, slots * layout.head_dim));
    fill(&values, keys.size());
    fill(&positions, slots * 4);
    fill(&scores, slots * 4);
    fill(&log_weights, slots * 8);
  }
  std::vector<std::vector<uint8_t>*> Arrays() {
    return {&keys, &values, &positions, &scores, &log_weights};
  }
};

class SwapPagesTest : public BackendTest {
 protected:
  // One side in the backend's memory.
  class Uploaded {
   public:
    Uploaded(SwapPagesTest* test, Side side) {
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

TEST_P(SwapPagesTest, CopiesTheNamedPagesAndNothingElse) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const auto& [head_dim, block_size, count] :
         {std::array{64, 16, 1}, std::array{34, 3, 5}, std::array{2, 1, 9}, std::array{8, 4, 40},
          std::array{8, 4, 0}}) {
      const KvLayout layout = {.dtype = dtype, .head_dim = head_dim, .block_size = block_size};
      constexpr int kPoolPages = 50, kHostPages = 60;
      std::vector<int32_t> pages(kPoolPages), host_pages(kHostPages);
      std::iota(pages.begin(), pages.end(), 0);
      std::iota(host_pages.begin(), host_pages.end(), 0);
      std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
      std::shuffle(host_pages.begin(), host_pages.end(), std::mt19937(2));
      std::vector<PageSwap> swaps(count);
      for (int i = 0; i < count; ++i) swaps[i] = {pages[i], host_pages[i]};

      Side pool(layout, kPoolPages, 3), host(layout, kHostPages, 4);
      for (const bool out : {true, false}) {
        Uploaded device_pool(this, pool), device_host(this, host);
        auto device_swaps = Upload(std::vector<int32_t>(2 * count));
        backend().CopyToDevice(device_swaps.data(), swaps.data(), count * sizeof(PageSwap));
        const SwapPagesArgs args = {.swaps = reinterpret_cast<const PageSwap*>(device_swaps.data()),
                                    .count = count,
                                    .pool = device_pool.Pages(layout),
                                    .host = device_host.Pages(layout)};
        out ? backend().SwapOutPages(args) : backend().SwapInPages(args);
        Side expected_pool = pool, expected_host = host;
        for (const PageSwap& swap : swaps) {
          for (size_t a = 0; a < pool.Arrays().size(); ++a) {
            const size_t bytes = pool.Arrays()[a]->size() / kPoolPages;
            uint8_t* in_pool = expected_pool.Arrays()[a]->data() + swap.page * bytes;
            uint8_t* in_host = expected_host.Arrays()[a]->data() + swap.host_page * bytes;
            out ? std::copy_n(in_pool, bytes, in_host) : std::copy_n(in_host, bytes, in_pool);
          }
        }
        const std::string what = std::string(out ? "out" : "in") + ", head_dim " +
                                 std::to_string(head_dim) + ", " + std::to_string(count) + " pages";
        device_pool.Expect(expected_pool, what + ", pool");
        device_host.Expect(expected_host, what + ", host");
      }
    }
  }
}

HYDRANT_FOR_EACH_BACKEND(SwapPagesTest);

}  // namespace
}  // namespace hydrant
