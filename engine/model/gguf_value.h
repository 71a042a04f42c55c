// Reading one metadata value of a GGUF file from untrusted bytes. Stateless; any thread may call.
#ifndef HYDRANT_ENGINE_MODEL_GGUF_VALUE_H_
#define HYDRANT_ENGINE_MODEL_GGUF_VALUE_H_

#include <string_view>

#include "absl/status/status.h"
#include "engine/model/byte_reader.h"
#include "engine/model/gguf.h"

namespace hydrant {

// Reads the type number and the value. Arrays of arrays are refused; an array's length is checked
// against the remaining bytes before allocation.
absl::Status ReadGgufValue(ByteReader& reader, GgufValue* out);

// The value's type for messages: "integer", "array of string".
std::string_view GgufTypeName(const GgufValue& value);

}  // namespace hydrant

#endif  // HYDRANT_ENGINE_MODEL_GGUF_VALUE_H_
