#include "tests/kernels/cuda_emulation/tracing.h"

namespace hydrant::emulation {

void BeginBlock() {}
void EndBlock() {}
void EndGrid() {}
void BeginOverlappedGrid() {}
bool EndOverlappedGrid() { return true; }
void ForgetWrites() {}
void NoteThreadWaits() {}
void NoteCopy(const void* /*from*/, size_t /*bytes*/) {}
void NoteBlockBarrier() {}
void NoteFence() {}
AtomicAccess::AtomicAccess() {
}  // NOLINT(modernize-use-equals-default): not empty in the traced build
AtomicAccess::~AtomicAccess() {}  // NOLINT(modernize-use-equals-default)

}  // namespace hydrant::emulation
