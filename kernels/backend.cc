#include "kernels/backend.h"

#include "absl/strings/str_cat.h"

namespace hydrant {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name,
                                                       const BackendOptions& options) {
  if (options.num_threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads is ", options.num_threads, "; it must be at least 1"));
  }
  if (name == "reference") return CreateReferenceBackend(options);
  if (name == "cpu") return CreateCpuBackend(options);
  if (name == "cuda") return CreateCudaBackend(options);
  return absl::InvalidArgumentError(absl::StrCat("backend \"", std::string(name),
                                                 "\" is unknown; backends: reference, cpu, cuda"));
}

}  // namespace hydrant
