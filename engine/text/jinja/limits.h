// Limits of a template and its rendering. Templates (from model files) and values (from clients)
// are untrusted: neither may loop endlessly, exhaust the stack or allocate without bound. Every
// error names the limit. Plain data.
#ifndef HYDRANT_ENGINE_TEXT_JINJA_LIMITS_H_
#define HYDRANT_ENGINE_TEXT_JINJA_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace hydrant::jinja {

struct Limits {
  // Bytes of the source.
  size_t max_template_bytes = 1 << 20;
  int max_nesting = 100;  // of statements, of an expression's tree, of a value's containers

  // Limits of one rendering.
  int64_t max_steps = 20'000'000;                  // expressions and statements evaluated
  int64_t max_allocated_bytes = int64_t{1} << 30;  // of all values created, freed or not
  int64_t max_value_bytes = 64 << 20;              // of one string or list
  int64_t max_value_weight = 16 << 20;             // of one value, see Extent
  int64_t max_output_bytes = 64 << 20;
  int max_depth = 500;     // of nested evaluations, through macros
  int max_range = 100000;  // items of range(), as in Jinja's sandbox
};

}  // namespace hydrant::jinja

#endif  // HYDRANT_ENGINE_TEXT_JINJA_LIMITS_H_
