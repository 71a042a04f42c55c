// The remaining budget of one rendering (Limits). Exceeding it is an InvalidArgument that names the
// limit. Used by one thread.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_BUDGET_H_
#define HYDRANT_ENGINE_TEXT_JINJA_BUDGET_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/jinja/limits.h"
#include "engine/text/jinja/value.h"

namespace hydrant::jinja {

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }

  absl::Status Step(int64_t steps = 1);
  // Call before allocating `bytes` for one value.
  absl::Status Allocate(int64_t bytes);
  absl::Status AllocateItems(size_t items);
  // Whether a list may have this length.
  absl::Status CheckItems(size_t items) const;
  absl::Status CheckExtent(const Extent& extent) const;
  // Call before a walk over a whole value, such as a comparison.
  absl::Status Walk(const Value& value) { return Step(value.GetExtent().weight / 16); }

  absl::StatusOr<Value> NewString(std::string text, bool markup = false);
  absl::StatusOr<Value> NewSequence(Sequence::Kind kind, std::vector<Value> items,
                                    std::string range_text = "");
  absl::StatusOr<Value> NewDict(Dict dict);
  absl::StatusOr<Value> NewList(std::vector<Value> items) {
    return NewSequence(Sequence::Kind::kList, std::move(items));
  }

 private:
  const Limits limits_;
  int64_t steps_ = 0;
  int64_t allocated_bytes_ = 0;
};

// A string built piece by piece within the limit of one value: after a piece that does not fit, the
// rest is dropped, and the error is returned at the end. Borrows the budget.
class BoundedText {
 public:
  explicit BoundedText(Budget* budget) : budget_(budget) {}

  void Append(std::string_view piece);
  void AppendTimes(std::string_view piece, int64_t times);  // none where times < 1
  bool ok() const { return status_.ok(); }
  absl::StatusOr<std::string> Text() &&;
  absl::StatusOr<Value> String(bool markup = false) &&;

 private:
  Budget* const budget_;
  std::string text_;
  absl::Status status_;
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_BUDGET_H_
