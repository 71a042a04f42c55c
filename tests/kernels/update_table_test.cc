// UpdateTable of every backend: named entries change, all others stay.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/kernels/backend_test.h"

namespace hydrant {
namespace {

class UpdateTableTest : public BackendTest {};

TEST_P(UpdateTableTest, ChangesNamedEntriesOnly) {
  for (const int count : {0, 1, 255, 256, 257, 1000}) {
    std::mt19937 rng(count);
    const auto id = [&] { return static_cast<int32_t>(rng() % 100000); };
    std::vector<PageIds> table(3000);
    for (PageIds& page : table) page = {id(), id()};
    std::vector<int64_t> indices(table.size());
    std::iota(indices.begin(), indices.end(), 0);
    std::shuffle(indices.begin(), indices.end(), rng);
    std::vector<PageIds> expected = table;
    std::vector<TableUpdate> updates;
    for (int i = 0; i < count; ++i) {
      updates.push_back({indices[i], {id(), id()}});
      expected[indices[i]] = updates.back().block;
    }
    auto blocks = Upload(table);
    auto buffer = backend().Allocate(updates.size() * sizeof(TableUpdate));
    ASSERT_TRUE(buffer.ok());
    backend().CopyToDevice(buffer->get(), updates.data(), updates.size() * sizeof(TableUpdate));
    backend().UpdateTable({.updates = static_cast<const TableUpdate*>(buffer->get()),
                           .count = count,
                           .blocks = blocks.data()});
    EXPECT_EQ(blocks.Read(), expected) << count << " updates";
  }
}

HYDRANT_FOR_EACH_BACKEND(UpdateTableTest);

}  // namespace
}  // namespace hydrant
