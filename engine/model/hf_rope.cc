// How positions turn queries and keys, in either of the ways in which config.json files say it.
#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "engine/model/hf_fields.h"
#include "engine/model/text.h"

namespace hydrant {
namespace {

using nlohmann::json;

absl::Status ReadLlama3(const json& scaling, Llama3RopeScaling* out) {
  out->enabled = true;
  if (absl::Status s = ReadReal(scaling, "factor", true, &out->factor); !s.ok()) return s;
  if (absl::Status s = ReadReal(scaling, "low_freq_factor", true, &out->low_freq_factor); !s.ok())
    return s;
  if (absl::Status s = ReadReal(scaling, "high_freq_factor", true, &out->high_freq_factor); !s.ok())
    return s;
  return ReadInt(scaling, "original_max_position_embeddings", true, &out->original_context);
}

absl::Status ReadScaling(const json& scaling, ModelConfig* c) {
  std::string type = "default";
  if (absl::Status s = ReadString(scaling, "type", &type); !s.ok()) return s;  // the older name
  if (absl::Status s = ReadString(scaling, "rope_type", &type); !s.ok()) return s;
  if (type == "default") return absl::OkStatus();
  if (type == "linear") return ReadReal(scaling, "factor", true, &c->rope_linear_factor);
  if (type == "llama3") return ReadLlama3(scaling, &c->llama3);
  return absl::UnimplementedError(
      absl::StrCat("rope_type is ", Quoted(type), "; default, linear and llama3 are supported"));
}

}  // namespace

// transformers 5 keeps everything in rope_parameters; before, rope_theta stood alone beside
// rope_scaling.
absl::Status ReadHfRope(const json& root, ModelConfig* c, double* rotated) {
  if (absl::Status s = ReadReal(root, "rope_theta", false, &c->rope_theta); !s.ok()) return s;
  const char* key =
      FindField(root, "rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const json* scaling = FindField(root, key);
  if (scaling == nullptr) return absl::OkStatus();
  if (!scaling->is_object()) return WrongField(key, *scaling, "an object or null");
  for (const auto& [name, value] : scaling->items()) {
    if (value.is_object()) {
      return absl::UnimplementedError(absl::StrCat(key, " differs by kind of layer (", Quoted(name),
                                                   "); this is not supported"));
    }
  }
  absl::Status status = ReadReal(*scaling, "rope_theta", false, &c->rope_theta);
  if (status.ok()) status = ReadReal(*scaling, "partial_rotary_factor", false, rotated);
  if (status.ok()) status = ReadScaling(*scaling, c);
  return WithContext(status, key);
}

}  // namespace hydrant
