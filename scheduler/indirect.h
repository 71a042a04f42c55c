// A value on the heap, as std::indirect of C++26: copied, moved and compared like the value, while
// the object itself stays small.
#ifndef HYDRANT_SCHEDULER_INDIRECT_H_
#define HYDRANT_SCHEDULER_INDIRECT_H_

#include <memory>
#include <utility>

namespace hydrant {

template <typename T>
class Indirect {
 public:
  Indirect() : value_(std::make_unique<T>()) {}
  Indirect(T value) : value_(std::make_unique<T>(std::move(value))) {}  // NOLINT: as the value
  Indirect(const Indirect& other) : Indirect(*other) {}
  Indirect(Indirect&& other) noexcept = default;  // afterwards `other` may only be assigned to
  Indirect& operator=(const Indirect& other) { return *this = Indirect(other); }
  Indirect& operator=(Indirect&& other) noexcept = default;
  ~Indirect() = default;

  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return value_.get(); }
  const T* operator->() const { return value_.get(); }
  operator const T&() const { return *value_; }  // NOLINT: as the value

 private:
  std::unique_ptr<T> value_;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_INDIRECT_H_
