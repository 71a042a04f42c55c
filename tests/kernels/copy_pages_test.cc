// CopyPages of every backend: every byte of both sides is compared, that of the untouched pages
// included.
#include "kernels/ops/copy_pages.h"

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

// `to`, when pages of `from` have been copied into it.
Side Copied(Side from, int from_pages, Side to, int to_pages, const std::vector<PageCopy>& copies) {
  const std::vector<std::vector<uint8_t>*> sources = from.Arrays(), targets = to.Arrays();
  for (size_t a = 0; a < sources.size(); ++a) {
    const size_t bytes = sources[a]->size() / from_pages;
    EXPECT_EQ(bytes, targets[a]->size() / to_pages);
    for (const PageCopy& copy : copies)
      std::copy_n(sources[a]->data() + copy.from * bytes, bytes,
                  targets[a]->data() + copy.to * bytes);
  }
  return to;
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
      constexpr int kPoolPages = 50, kHostPages = 60;
      std::vector<int32_t> pages(kPoolPages), host_pages(kHostPages);
      std::iota(pages.begin(), pages.end(), 0);
      std::iota(host_pages.begin(), host_pages.end(), 0);
      std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
      std::shuffle(host_pages.begin(), host_pages.end(), std::mt19937(2));
      std::vector<PageCopy> copies(count);
      for (int i = 0; i < count; ++i) copies[i] = {pages[i], host_pages[i]};
      const Side pool(layout, kPoolPages, 3), host(layout, kHostPages, 4);
      Uploaded device_pool(this, pool), device_host(this, host);
      auto device_copies = Upload(std::vector<int32_t>(2 * count));
      backend().CopyToDevice(device_copies.data(), copies.data(), count * sizeof(PageCopy));
      backend().CopyPages({.copies = reinterpret_cast<const PageCopy*>(device_copies.data()),
                           .count = count,
                           .from = device_pool.Pages(layout),
                           .to = device_host.Pages(layout)});
      const std::string what =
          "head_dim " + std::to_string(head_dim) + ", " + std::to_string(count) + " pages";
      device_pool.Expect(pool, what + ", from");
      device_host.Expect(Copied(pool, kPoolPages, host, kHostPages, copies), what + ", to");
    }
  }
}

TEST_P(CopyPagesTest, WithinThePool) {
  const KvLayout layout = {.dtype = DType::kBF16, .head_dim = 16, .block_size = 4};
  constexpr int kPages = 20;
  const std::vector<PageCopy> copies = {{3, 0}, {3, 19}, {7, 5}, {11, 12}};
  const Side pool(layout, kPages, 5);
  Uploaded device_pool(this, pool);
  auto device_copies = Upload(std::vector<int32_t>(2 * copies.size()));
  backend().CopyToDevice(device_copies.data(), copies.data(), copies.size() * sizeof(PageCopy));
  backend().CopyPages({.copies = reinterpret_cast<const PageCopy*>(device_copies.data()),
                       .count = static_cast<int>(copies.size()),
                       .from = device_pool.Pages(layout),
                       .to = device_pool.Pages(layout)});
  device_pool.Expect(Copied(pool, kPages, pool, kPages, copies), "the pool");
}

HYDRANT_FOR_EACH_BACKEND(CopyPagesTest);

}  // namespace
}  // namespace hydrant
