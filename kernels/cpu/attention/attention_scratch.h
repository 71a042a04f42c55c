// A thread's scratch memory for attention: grows with the largest call and never shrinks,
// so that steady decoding does not allocate. Contents are undefined after every Reserve().
// One owner, not thread safe.
#ifndef HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SCRATCH_H_
#define HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SCRATCH_H_

#include <cstddef>
#include <memory>
#include <new>

namespace hydrant::cpu {

class AttentionScratch {
 public:
  // At least `floats` values, aligned to 64 bytes; valid until the next call.
  float* Reserve(size_t floats) {
    if (floats > capacity_) {
      capacity_ = floats + floats / 2;
      buffer_.reset();  // frees first: the peak is the new size, not the sum
      buffer_.reset(static_cast<float*>(::operator new(capacity_ * sizeof(float), kAlignment)));
    }
    return buffer_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* p) const { ::operator delete(p, kAlignment); }
  };

  std::unique_ptr<float, Free> buffer_;
  size_t capacity_ = 0;
};

}  // namespace hydrant::cpu

#endif  // HYDRANT_KERNELS_CPU_ATTENTION_ATTENTION_SCRATCH_H_
