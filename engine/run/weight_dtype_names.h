// The names of weights' dtypes, for the flag --dtype. Stateless; thread-safe.
#ifndef HYDRANT_ENGINE_RUN_WEIGHT_DTYPE_NAMES_H_
#define HYDRANT_ENGINE_RUN_WEIGHT_DTYPE_NAMES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/weight.h"

namespace hydrant {

std::vector<std::string> WeightDTypeNames();
std::optional<WeightDType> WeightDTypeOf(std::string_view name);  // unset for unknown names
std::string_view NameOf(WeightDType dtype);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_RUN_WEIGHT_DTYPE_NAMES_H_
