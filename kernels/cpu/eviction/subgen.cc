#include "kernels/cpu/eviction/subgen.h"

#include "kernels/cpu/eviction/squared_distances.h"
#include "kernels/ops/subgen_head.h"

namespace hydrant::cpu {

void SubGenBuild(const SubGenBuildArgs& args, ThreadPool& threads) {
  WithSubGenRows(args, [&threads](const SubGenBuildArgs& with_rows) {
    threads.ParallelFor(with_rows.tables.num_kv_heads, [&with_rows](int head, int) {
      BuildSubGenHead<VectorDistances>(with_rows, head);
    });
  });
}

void SubGenInsert(const SubGenInsertArgs& args, ThreadPool& threads) {
  const int heads = args.tables.num_kv_heads;
  threads.ParallelFor(args.num_rows * heads, [&args, heads](int task, int) {
    InsertSubGenHead<VectorDistances>(args, task / heads, task % heads);
  });
}

}  // namespace hydrant::cpu
