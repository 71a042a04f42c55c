#include "kernels/reference/ops.h"

namespace hydrant::reference {

void UpdateTable(const UpdateTableArgs& args) {
  for (int i = 0; i < args.count; ++i) args.blocks[args.updates[i].index] = args.updates[i].block;
}

}  // namespace hydrant::reference
