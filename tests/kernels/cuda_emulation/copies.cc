// Emulated asynchronous copies of one block's threads.
#include <vector>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sm90.cuh"
#include "tests/kernels/cuda_emulation/tracing.h"

namespace hydrant::emulation {
namespace {

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
};

struct ThreadCopies {
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;  // oldest first
};

auto& copies = *new std::vector<ThreadCopies>(1024);  // by thread of the block

}  // namespace

void QueueCopy(void* to, const void* from, int bytes, bool valid) {
  if (valid) NoteCopy(from, static_cast<size_t>(bytes));
  copies[CurrentThread()].open.push_back({to, valid ? from : nullptr, static_cast<size_t>(bytes)});
}

void CloseCopyGroup() {
  ThreadCopies& mine = copies[CurrentThread()];
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}

void WaitForCopies(int pending) {
  auto& groups = copies[CurrentThread()].groups;
  while (groups.size() > static_cast<size_t>(pending)) {
    for (const Copy& copy : groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, copy.bytes);
      } else {
        std::memcpy(copy.to, copy.from, copy.bytes);
      }
      NoteSharedWrite(copy.to);
    }
    groups.erase(groups.begin());
  }
}

}  // namespace hydrant::emulation
