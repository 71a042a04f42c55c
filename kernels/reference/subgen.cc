#include "kernels/ops/subgen.h"

#include "kernels/ops/subgen_head.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/squared_distances.h"

namespace hydrant::reference {

void SubGenBuild(const SubGenBuildArgs& args) {
  WithSubGenRows(args, [](const SubGenBuildArgs& with_rows) {
    for (int h = 0; h < with_rows.tables.num_kv_heads; ++h)
      BuildSubGenHead<DoubleDistances>(with_rows, h);
  });
}

void SubGenInsert(const SubGenInsertArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    for (int h = 0; h < args.tables.num_kv_heads; ++h)
      InsertSubGenHead<DoubleDistances>(args, row, h);
  }
}

}  // namespace hydrant::reference
