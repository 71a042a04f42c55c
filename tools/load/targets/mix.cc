#include "tools/load/targets/mix.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/status_macros.h"

namespace hydrant::load {
namespace {

using google::protobuf::FieldDescriptor;

// Sets a scalar field of the message from text; false if it does not parse.
bool SetField(const FieldDescriptor& field, const std::string& text,
              google::protobuf::Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32: {
      uint32_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return false;
      reflection.SetUInt32(message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return false;
      reflection.SetInt32(message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return false;
      reflection.SetUInt64(message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0.0;
      if (!absl::SimpleAtod(text, &value)) return false;
      reflection.SetDouble(message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      reflection.SetString(message, &field, text);
      return true;
    case FieldDescriptor::CPPTYPE_BOOL: {
      bool value = false;
      if (!absl::SimpleAtob(text, &value)) return false;
      reflection.SetBool(message, &field, value);
      return true;
    }
    case FieldDescriptor::CPPTYPE_ENUM: {  // "off" is REUSE_OFF
      const google::protobuf::EnumDescriptor& values = *field.enum_type();
      const std::string prefix = absl::AsciiStrToUpper(absl::StrCat(field.name(), "_"));
      const auto* value = values.FindValueByName(prefix + absl::AsciiStrToUpper(text));
      if (value == nullptr || value->number() == 0) return false;
      reflection.SetEnum(message, &field, value);
      return true;
    }
    default:
      return false;
  }
}

absl::Status Wrong(const std::string& arm, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("mix: '", arm, "': ", absl::string_view(why.data(), why.size())));
}

// The message with a scalar field of this name; null: none.
google::protobuf::Message* MessageWith(const std::string& name, MixedArm* arm, v1::Slo* slo) {
  google::protobuf::Message* const messages[] = {&arm->cache, &arm->scheduling, slo};
  for (google::protobuf::Message* message : messages) {
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
    if (field != nullptr && !field->is_repeated() &&
        field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE)
      return message;
  }
  return nullptr;
}

absl::StatusOr<MixedArm> ParseArm(const std::string& text) {
  const std::pair<std::string, std::string> weighted =
      absl::StrSplit(text, absl::MaxSplits('@', 1));
  MixedArm arm;
  arm.name = weighted.first;
  if (!weighted.second.empty() || text.back() == '@') {
    if (!absl::SimpleAtod(weighted.second, &arm.weight) || !(arm.weight > 0.0 && arm.weight <= 1e9))
      return Wrong(text, "what follows @ is its weight, a number above 0");
  }
  const std::vector<std::string> parts = absl::StrSplit(arm.name, ':');
  if (parts[0].empty()) return Wrong(text, "it begins with the name of a policy");
  arm.cache.set_cache_policy(parts[0]);
  v1::Slo slo;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> setting =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    if (setting.first.empty() || setting.second.empty())
      return Wrong(text, "settings are written name=value");
    google::protobuf::Message* message = MessageWith(setting.first, &arm, &slo);
    if (message == nullptr) {
      (*arm.cache.mutable_params())[setting.first] = setting.second;
    } else if (!SetField(*message->GetDescriptor()->FindFieldByName(setting.first), setting.second,
                         message)) {
      return Wrong(text,
                   absl::StrCat(setting.first, ": '", setting.second, "' is no value for it"));
    }
  }
  if (slo.ByteSizeLong() > 0) *arm.scheduling.mutable_slo() = slo;
  return arm;
}

}  // namespace

absl::StatusOr<std::vector<MixedArm>> ParseMix(std::string_view text) {
  std::vector<MixedArm> mix;
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
  for (const std::string& part : parts) {
    if (part.empty()) return Wrong(part, "it begins with the name of a policy");
    HYDRANT_ASSIGN_OR_RETURN(MixedArm arm, ParseArm(part));
    mix.push_back(std::move(arm));
  }
  return mix;
}

}  // namespace hydrant::load
