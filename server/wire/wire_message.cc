#include "server/wire/wire_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/text/unicode/utf8.h"

namespace hydrant {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// Deeper than any message of the contract; bounds the recursion.
constexpr int kMaxDepth = 8;

// The first string field, in wire order, that is not valid UTF-8; "" if there is none. The
// fields are parsed without a schema, which does not check strings, and matched with the
// descriptor by number.
std::string FindBadString(const UnknownFieldSet& fields, const Descriptor& type,
                          const std::string& prefix, int depth) {
  std::map<int, int> counts;  // by field number
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const int place = counts[field.number()]++;
    const FieldDescriptor* known = type.FindFieldByNumber(field.number());
    if (known == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    std::string path = prefix.empty() ? known->name() : prefix + "." + known->name();
    if (known->is_repeated() && !known->is_map()) path += absl::StrCat("[", place, "]");
    const std::string& value = field.length_delimited();
    if (known->type() == FieldDescriptor::TYPE_STRING) {
      const absl::Status valid = ValidateUtf8(value);
      if (!valid.ok()) return absl::StrCat(path, ": ", valid.message());
    } else if (known->type() == FieldDescriptor::TYPE_MESSAGE && depth < kMaxDepth) {
      UnknownFieldSet inner;
      if (!inner.ParseFromString(value)) continue;
      std::string found = FindBadString(inner, *known->message_type(), path, depth + 1);
      if (!found.empty()) return found;
    }
  }
  return {};
}

std::string ToString(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  if (!bytes.Dump(&slices).ok()) return {};
  std::string joined;
  for (const grpc::Slice& slice : slices) {
    joined.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return joined;
}

}  // namespace

absl::Status ParseWire(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  {
    grpc::ByteBuffer copy(bytes);  // shares the slices; the reader needs a mutable buffer
    grpc::ProtoBufferReader reader(&copy);
    if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  }
  UnknownFieldSet fields;
  if (fields.ParseFromString(ToString(bytes))) {
    std::string found = FindBadString(fields, *message->GetDescriptor(), "", 0);
    if (!found.empty()) return absl::InvalidArgumentError(found);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the message is not a valid ", message->GetDescriptor()->full_name()));
}

grpc::ByteBuffer ToWire(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace hydrant
