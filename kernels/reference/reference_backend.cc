#include "kernels/host_backend.h"

namespace hydrant {
namespace {

class ReferenceBackend final : public HostBackend {
 public:
  std::string_view Name() const override { return "reference"; }
  std::string Description() const override { return "reference: plain loops, 1 thread"; }
};

}  // namespace

std::unique_ptr<Backend> CreateReferenceBackend(const BackendOptions&) {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace hydrant
