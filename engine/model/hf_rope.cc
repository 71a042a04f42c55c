// How positions turn queries and keys, in either of the ways in which config.json files say it.
#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using nlohmann::json;

// What transformers passes over where the type does not use it.
constexpr IdleField kIdle[] = {
    {"factor"}, {"low_freq_factor"}, {"high_freq_factor"}, {"original_max_position_embeddings"}};

absl::Status ReadLlama3(HfFields& rope, Llama3RopeScaling* out) {
  out->enabled = true;
  HYDRANT_RETURN_IF_ERROR(ReadReal(rope, "factor", true, &out->factor));
  HYDRANT_RETURN_IF_ERROR(ReadReal(rope, "low_freq_factor", true, &out->low_freq_factor));
  HYDRANT_RETURN_IF_ERROR(ReadReal(rope, "high_freq_factor", true, &out->high_freq_factor));
  return ReadInt(rope, "original_max_position_embeddings", true, &out->original_context);
}

absl::Status ReadScaling(HfFields& rope, ModelConfig* c) {
  std::string type = "default";
  HYDRANT_RETURN_IF_ERROR(ReadString(rope, "type", &type));  // the older name
  HYDRANT_RETURN_IF_ERROR(ReadString(rope, "rope_type", &type));
  if (type == "default") return absl::OkStatus();
  if (type == "linear") return ReadReal(rope, "factor", true, &c->rope_linear_factor);
  if (type == "llama3") return ReadLlama3(rope, &c->llama3);
  return absl::UnimplementedError(
      absl::StrCat("rope_type is ", Quoted(type), "; default, linear and llama3 are supported"));
}

absl::Status ReadObject(const json& object, ModelConfig* c, double* rotated) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      return absl::UnimplementedError(
          absl::StrCat("differs by kind of layer (", Quoted(name), "); this is not supported"));
    }
  }
  HfFields rope(object);
  HYDRANT_RETURN_IF_ERROR(ReadReal(rope, "rope_theta", false, &c->rope_theta));
  HYDRANT_RETURN_IF_ERROR(ReadReal(rope, "partial_rotary_factor", false, rotated));
  HYDRANT_RETURN_IF_ERROR(ReadScaling(rope, c));
  const std::span<const IdleField> idle[] = {kIdle};
  return rope.RefuseUnread(idle);
}

}  // namespace

// transformers 5 keeps everything in rope_parameters, and puts a rope_scaling that says anything in
// its place as a whole: that is what older files have.
absl::Status ReadHfRope(HfFields& root, ModelConfig* c, double* rotated) {
  const char* key = "rope_parameters";
  const json* object = root.Find(key);
  if (const json* scaling = root.Find("rope_scaling"); scaling != nullptr && !scaling->empty()) {
    key = "rope_scaling";
    object = scaling;
  }
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return WrongField(key, *object, "an object or null");
  return WithContext(ReadObject(*object, c, rotated), key);
}

}  // namespace hydrant
