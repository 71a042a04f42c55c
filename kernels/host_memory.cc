#include "kernels/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/byte_text.h"

namespace hydrant {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMapFrom = size_t{4} << 20;  // from this size on: mapped, with huge pages

absl::Status Exhausted(size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot allocate ", FormatByteSize(bytes), " of host memory"));
}

// The system may overcommit and kill the process later, so sizes above physical memory are refused.
size_t PhysicalBytes() { return HostMemory().total_bytes; }

}  // namespace

DeviceMemory HostMemory() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return {static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page,
          static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page};
}

absl::StatusOr<DeviceBuffer> AllocateHostMemory(size_t bytes) {
  if (bytes > PhysicalBytes()) return Exhausted(bytes);
  if (bytes < kMapFrom) {
    const size_t rounded = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    void* memory = std::aligned_alloc(kAlignment, rounded);
    if (memory == nullptr) return Exhausted(bytes);
    std::memset(memory, 0, rounded);
    return DeviceBuffer(memory, [](void* p) { std::free(p); });
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Exhausted(bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);  // advisory: failure costs speed only
  return DeviceBuffer(memory, [bytes](void* p) { munmap(p, bytes); });
}

absl::StatusOr<DeviceBuffer> AllocateFileMemory(size_t bytes, const std::string& directory) {
  const auto failed = [&](int error) {
    return absl::ErrnoToStatus(
        error, absl::StrCat("no file of ", FormatByteSize(bytes), " in ", directory));
  };
  std::string name = directory + "/hydrant-swap-XXXXXX";
  const int file = mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) return failed(errno);
  unlink(name.c_str());
  const size_t size = std::max<size_t>(bytes, 1);
  int error = posix_fallocate(file, 0, static_cast<off_t>(size));
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  close(file);  // the mapping keeps the file open
  if (error != 0) return failed(error);
  return DeviceBuffer(memory, [size](void* p) { munmap(p, size); });
}

}  // namespace hydrant
