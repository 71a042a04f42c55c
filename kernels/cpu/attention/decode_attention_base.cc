// The decode attention kernels, compiled for the minimum of the backend (kernels/cpu/isa/isa.h):
// see decode_attention_kernels.h.
#include "kernels/cpu/attention/decode_attention_kernels.h"
// The vectors must come first.
// clang-format off
#define HYDRANT_SIMD_NAMESPACE base
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/attention_softcap-inl.h"
#include "kernels/cpu/attention/decode_attention_part-inl.h"
#include "kernels/cpu/attention/decode_attention_join-inl.h"
// clang-format on

namespace hydrant::cpu {

DecodeKernels DecodeKernelsBase() { return {&base::AttendPart, &base::Join}; }

}  // namespace hydrant::cpu
