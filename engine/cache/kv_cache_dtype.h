// The names of the KV cache's dtypes, for the flag --kv-cache-dtype. Stateless; thread-safe.
#ifndef HYDRANT_ENGINE_CACHE_KV_CACHE_DTYPE_H_
#define HYDRANT_ENGINE_CACHE_KV_CACHE_DTYPE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/dtype.h"

namespace hydrant {

// "auto" first: it follows the weights (EngineOptions::kv_cache_dtype).
std::vector<std::string> KvCacheDTypeNames();
// Unset for "auto" and for unknown names.
std::optional<DType> KvCacheDTypeOf(std::string_view name);
std::string_view NameOfKvCacheDType(DType dtype);  // "?" of another dtype

// For --help.
inline constexpr std::string_view kKvCacheDTypeHelp =
    "What keys and values are kept as: auto (follows --dtype), float32, float16, bfloat16, fp8 "
    "(e4m3, half of 16 bits), int8 (nearly so, more exact), int4 (a quarter)";

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_CACHE_KV_CACHE_DTYPE_H_
