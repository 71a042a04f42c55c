// RoPE in config.json files, in the older and the newer notation.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/hf_families.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using nlohmann::json;

// Fields that transformers ignores if the type does not use them.
constexpr IdleField kRopeIdle[] = {{"factor"},           {"low_freq_factor"},
                                   {"high_freq_factor"}, {"original_max_position_embeddings"},
                                   {"attention_factor"}, {"beta_fast"},
                                   {"beta_slow"},        {"mscale"},
                                   {"mscale_all_dim"},   {"truncate"},
                                   {"short_factor"},     {"long_factor"}};

// Inputs of the scaling from outside its object.
struct Outside {
  HfRopeRules rules;
  int max_context = 0;
};

// original_max_position_embeddings in the object; a value of the family takes precedence.
absl::Status ReadOriginalContext(HfFields& fields, const Outside& outside, int* out) {
  *out = outside.max_context;
  HYDRANT_RETURN_IF_ERROR(ReadInt(fields, "original_max_position_embeddings", false, out));
  *out = outside.rules.original_context.value_or(*out);
  return absl::OkStatus();
}

absl::Status ReadLlama3(HfFields& fields, const Outside& outside, Llama3RopeScaling* out) {
  out->enabled = true;
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "factor", true, &out->factor));
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "low_freq_factor", true, &out->low_freq_factor));
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "high_freq_factor", true, &out->high_freq_factor));
  return ReadOriginalContext(fields, outside, &out->original_context);
}

// The temperature of YaRN (arXiv 2309.00071, section 3.4), as a factor of queries and keys.
double YarnTemperature(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

absl::Status ReadYarn(HfFields& fields, const Outside& outside, Rope* rope) {
  YarnRopeScaling& yarn = rope->yarn;
  yarn.enabled = true;
  HYDRANT_RETURN_IF_ERROR(ReadOriginalContext(fields, outside, &yarn.original_context));
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "factor", true, &yarn.factor));
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "beta_fast", false, &yarn.beta_fast));
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "beta_slow", false, &yarn.beta_slow));
  HYDRANT_RETURN_IF_ERROR(ReadBool(fields, "truncate", &yarn.truncate));
  double mscale = 0, mscale_all_dim = 0;
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "mscale", false, &mscale));
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "mscale_all_dim", false, &mscale_all_dim));
  const bool both = mscale != 0 && mscale_all_dim != 0;
  rope->attention_factor =
      both ? YarnTemperature(yarn.factor, mscale) / YarnTemperature(yarn.factor, mscale_all_dim)
           : YarnTemperature(yarn.factor, 1.0);
  return ReadReal(fields, "attention_factor", false, &rope->attention_factor);
}

absl::Status ReadFactors(HfFields& fields, const char* key, std::vector<float>* out) {
  const json* factors = fields.Find(key);
  if (factors == nullptr) return absl::NotFoundError(absl::StrCat(key, " is missing"));
  const bool numbers = factors->is_array() && std::ranges::all_of(*factors, [](const json& value) {
                         return value.is_number();
                       });
  if (!numbers || factors->empty()) return WrongField(key, *factors, "an array of numbers");
  *out = factors->get<std::vector<float>>();
  return absl::OkStatus();
}

absl::Status ReadLongRope(HfFields& fields, const Outside& outside, Rope* rope) {
  LongRopeScaling& scaling = rope->long_rope;
  HYDRANT_RETURN_IF_ERROR(ReadFactors(fields, "short_factor", &scaling.short_factors));
  HYDRANT_RETURN_IF_ERROR(ReadFactors(fields, "long_factor", &scaling.long_factors));
  HYDRANT_RETURN_IF_ERROR(ReadOriginalContext(fields, outside, &scaling.original_context));
  double factor = static_cast<double>(outside.max_context) / std::max(scaling.original_context, 1);
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "factor", false, &factor));
  if (factor > 1.0) {
    rope->attention_factor = std::sqrt(1.0 + std::log(factor) / std::log(scaling.original_context));
  }
  return ReadReal(fields, "attention_factor", false, &rope->attention_factor);
}

absl::Status ReadScaling(HfFields& fields, const Outside& outside, Rope* rope) {
  std::string type = "default";
  HYDRANT_RETURN_IF_ERROR(ReadString(fields, "type", &type));  // the older name
  HYDRANT_RETURN_IF_ERROR(ReadString(fields, "rope_type", &type));
  if (type == "default") return absl::OkStatus();
  if (outside.rules.only_longrope) {
    if (type == "longrope" || type == "su" || type == "yarn")
      return ReadLongRope(fields, outside, rope);
    return absl::UnimplementedError(absl::StrCat(
        "rope_type is ", Quoted(type), "; default and longrope are supported in this family"));
  }
  if (type == "linear") return ReadReal(fields, "factor", true, &rope->linear_factor);
  if (type == "llama3") return ReadLlama3(fields, outside, &rope->llama3);
  if (type == "yarn") return ReadYarn(fields, outside, rope);
  if (type == "longrope") return ReadLongRope(fields, outside, rope);
  return absl::UnimplementedError(absl::StrCat(
      "rope_type is ", Quoted(type), "; default, linear, llama3, yarn and longrope are supported"));
}

absl::Status ReadObject(const json& object, const Outside& outside, Rope* rope, double* rotated) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) {
      return absl::UnimplementedError(
          absl::StrCat("differs by kind of layer (", Quoted(name), "); this is not supported"));
    }
  }
  HfFields fields(object);
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "rope_theta", false, &rope->theta));
  HYDRANT_RETURN_IF_ERROR(ReadReal(fields, "partial_rotary_factor", false, rotated));
  HYDRANT_RETURN_IF_ERROR(ReadScaling(fields, outside, rope));
  const std::span<const IdleField> idle[] = {kRopeIdle};
  return fields.RefuseUnread(idle);
}

// RoPE of one kind of layer.
absl::Status ReadKind(const json& kinds, const char* kind, const ModelConfig& c, Rope* rope) {
  const auto it = kinds.find(kind);
  if (it == kinds.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_object()) return WrongField(kind, *it, "an object or null");
  double rotated = 1.0;
  HYDRANT_RETURN_IF_ERROR(WithContext(ReadObject(*it, {{}, c.max_context}, rope, &rotated), kind));
  if (rotated != 1.0) {
    return absl::UnimplementedError(
        absl::StrCat(kind, ": partial_rotary_factor is ", rotated, ", only 1 is supported"));
  }
  // transformers reads it from the enclosing object.
  if (rope->yarn.truncate) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(kind, ": truncate is false, only true is supported here"));
}

}  // namespace

// transformers 5 keeps everything in rope_parameters; a non-empty rope_scaling, as in older files,
// replaces it as a whole.
absl::Status ReadHfRope(HfFields& root, const HfRopeRules& rules, ModelConfig* c, double* rotated) {
  const char* key = "rope_parameters";
  const json* object = root.Find(key);
  if (const json* scaling = root.Find("rope_scaling"); scaling != nullptr && !scaling->empty()) {
    key = "rope_scaling";
    object = scaling;
  }
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return WrongField(key, *object, "an object or null");
  return WithContext(ReadObject(*object, {rules, c->max_context}, &c->rope, rotated), key);
}

absl::Status ReadHfRopeOfKinds(HfFields& root, ModelConfig* c) {
  const json* kinds = root.Find("rope_parameters");
  const json* scaling = root.Find("rope_scaling");
  if (kinds != nullptr && scaling != nullptr) {
    return absl::UnimplementedError(
        "rope_scaling stands beside rope_parameters; one of the two is supported");
  }
  if (kinds != nullptr) {
    if (!kinds->is_object()) return WrongField("rope_parameters", *kinds, "an object or null");
    for (const auto& item : kinds->items()) {
      if (item.key() == "full_attention" || item.key() == "sliding_attention") continue;
      return absl::UnimplementedError(
          absl::StrCat("rope_parameters has ", Quoted(item.key()),
                       ", wanted objects full_attention and sliding_attention"));
    }
    HYDRANT_RETURN_IF_ERROR(
        WithContext(ReadKind(*kinds, "full_attention", *c, &c->rope), "rope_parameters"));
    return WithContext(ReadKind(*kinds, "sliding_attention", *c, &*c->sliding_rope),
                       "rope_parameters");
  }
  if (scaling == nullptr) return absl::OkStatus();
  return ReadKind({{"rope_scaling", *scaling}}, "rope_scaling", *c, &c->rope);
}

}  // namespace hydrant
