// The wire contract only grows. Everything in the stored (released) descriptor set must be in
// the current file with the same number, name, type and label. After adding to the contract,
// store it anew:
//   protoc -I proto --descriptor_set_out=tests/data/proto/hydrant_v1.binpb hydrant/v1/hydrant.proto
//   protoc -I proto --descriptor_set_out=tests/data/proto/hydrant_v1_control.binpb
//     hydrant/v1/control.proto
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "hydrant/v1/control.pb.h"
#include "hydrant/v1/hydrant.pb.h"

namespace hydrant {
namespace {

using google::protobuf::DescriptorProto;
using google::protobuf::EnumDescriptorProto;
using google::protobuf::FieldDescriptorProto;
using google::protobuf::FileDescriptorProto;
using google::protobuf::MethodDescriptorProto;
using google::protobuf::ServiceDescriptorProto;
using testing::IsEmpty;
using testing::Not;

template <typename List>
auto FindByName(const List& list, const std::string& name) -> decltype(&list.Get(0)) {
  for (const auto& item : list) {
    if (item.name() == name) return &item;
  }
  return nullptr;
}

// The properties of a field on the wire and in generated code.
std::string Signature(const FieldDescriptorProto& field) {
  std::ostringstream text;
  text << field.name() << " = " << field.number() << " type " << field.type() << " "
       << field.type_name() << " label " << field.label() << " optional " << field.proto3_optional()
       << " oneof " << (field.has_oneof_index() && !field.proto3_optional());
  return text.str();
}

void CompareMessages(const DescriptorProto& old, const DescriptorProto& now,
                     const std::string& path, std::vector<std::string>* breaks) {
  for (const FieldDescriptorProto& field : old.field()) {
    const FieldDescriptorProto* same = FindByName(now.field(), field.name());
    if (same == nullptr) {
      breaks->push_back(path + "." + field.name() + " is gone");
    } else if (Signature(*same) != Signature(field)) {
      breaks->push_back(path + ": " + Signature(field) + " became " + Signature(*same));
    }
  }
  for (const DescriptorProto& nested : old.nested_type()) {
    const DescriptorProto* same = FindByName(now.nested_type(), nested.name());
    if (same == nullptr) {
      breaks->push_back(path + "." + nested.name() + " is gone");
    } else {
      CompareMessages(nested, *same, path + "." + nested.name(), breaks);
    }
  }
}

void CompareEnums(const EnumDescriptorProto& old, const EnumDescriptorProto& now,
                  std::vector<std::string>* breaks) {
  for (const auto& value : old.value()) {
    const auto* same = FindByName(now.value(), value.name());
    if (same == nullptr || same->number() != value.number())
      breaks->push_back(old.name() + "." + value.name() + " changed");
  }
}

void CompareServices(const ServiceDescriptorProto& old, const ServiceDescriptorProto& now,
                     std::vector<std::string>* breaks) {
  for (const MethodDescriptorProto& method : old.method()) {
    const MethodDescriptorProto* same = FindByName(now.method(), method.name());
    if (same == nullptr || same->SerializeAsString() != method.SerializeAsString())
      breaks->push_back(old.name() + "." + method.name() + " changed");
  }
}

std::vector<std::string> Breaks(const FileDescriptorProto& old, const FileDescriptorProto& now) {
  std::vector<std::string> breaks;
  if (old.package() != now.package()) breaks.push_back("the package changed");
  for (const DescriptorProto& message : old.message_type()) {
    const DescriptorProto* same = FindByName(now.message_type(), message.name());
    if (same == nullptr) {
      breaks.push_back(message.name() + " is gone");
    } else {
      CompareMessages(message, *same, message.name(), &breaks);
    }
  }
  for (const EnumDescriptorProto& e : old.enum_type()) {
    const EnumDescriptorProto* same = FindByName(now.enum_type(), e.name());
    same == nullptr ? breaks.push_back(e.name() + " is gone") : CompareEnums(e, *same, &breaks);
  }
  for (const ServiceDescriptorProto& s : old.service()) {
    const ServiceDescriptorProto* same = FindByName(now.service(), s.name());
    same == nullptr ? breaks.push_back(s.name() + " is gone") : CompareServices(s, *same, &breaks);
  }
  return breaks;
}

FileDescriptorProto Stored(const std::string& name = "hydrant_v1") {
  std::ifstream file("tests/data/proto/" + name + ".binpb", std::ios::binary);
  google::protobuf::FileDescriptorSet set;
  EXPECT_TRUE(set.ParseFromIstream(&file));
  return set.file_size() == 1 ? set.file(0) : FileDescriptorProto();
}

FileDescriptorProto Today() {
  FileDescriptorProto today;
  v1::GenerateRequest::descriptor()->file()->CopyTo(&today);
  return today;
}

FileDescriptorProto ControlToday() {
  FileDescriptorProto today;
  v1::DrainRequest::descriptor()->file()->CopyTo(&today);
  return today;
}

TEST(Descriptor, TheControlPortsContractOnlyGrowsToo) {
  const FileDescriptorProto stored = Stored("hydrant_v1_control");
  ASSERT_EQ(stored.service_size(), 1);
  EXPECT_THAT(Breaks(stored, ControlToday()), IsEmpty());
  EXPECT_THAT(Breaks(ControlToday(), stored), IsEmpty()) << "store it anew, too";
}

TEST(Descriptor, NothingThatWasReleasedChanged) {
  const FileDescriptorProto stored = Stored();
  ASSERT_GT(stored.message_type_size(), 20);
  EXPECT_THAT(Breaks(stored, Today()), IsEmpty());
}

// Additions must be stored, too.
TEST(Descriptor, AllThatThereIsIsStored) {
  EXPECT_THAT(Breaks(Today(), Stored()), IsEmpty()) << "store it anew: see the top of this file";
}

// The check above can fail: each of these breaks is found.
TEST(Descriptor, BreaksAreFound) {
  const std::vector<std::function<void(FileDescriptorProto*)>> breaks = {
      [](auto* f) { f->mutable_message_type(0)->mutable_field(0)->set_number(99); },
      [](auto* f) { f->mutable_message_type(0)->mutable_field(0)->set_name("other"); },
      [](auto* f) {
        f->mutable_message_type(0)->mutable_field(0)->set_type(FieldDescriptorProto::TYPE_BYTES);
      },
      [](auto* f) { f->mutable_message_type(0)->mutable_field(0)->set_proto3_optional(false); },
      [](auto* f) { f->mutable_message_type()->DeleteSubrange(3, 1); },
      [](auto* f) { f->mutable_enum_type(0)->mutable_value(1)->set_number(7); },
      [](auto* f) { f->mutable_service(0)->mutable_method(0)->set_server_streaming(false); },
      [](auto* f) { f->set_package("hydrant.v2"); },
  };
  for (size_t i = 0; i < breaks.size(); ++i) {
    FileDescriptorProto changed = Today();
    breaks[i](&changed);
    EXPECT_THAT(Breaks(Stored(), changed), Not(IsEmpty())) << "break " << i;
  }
}

// The contract's own rules.
TEST(Descriptor, ScalarsAreOptionalAndEnumsBeginUnspecified) {
  const FileDescriptorProto today = Today();
  for (const auto& dependency : today.dependency())
    EXPECT_TRUE(dependency.starts_with("google/protobuf/")) << dependency;
  auto messages = today.message_type();
  messages.MergeFrom(ControlToday().message_type());
  for (const DescriptorProto& message : messages) {
    for (const FieldDescriptorProto& field : message.field()) {
      const bool scalar = field.type() != FieldDescriptorProto::TYPE_MESSAGE &&
                          field.label() != FieldDescriptorProto::LABEL_REPEATED;
      EXPECT_TRUE(!scalar || field.has_oneof_index()) << message.name() << "." << field.name();
    }
  }
  for (const EnumDescriptorProto& e : today.enum_type()) {
    EXPECT_TRUE(e.value(0).name().ends_with("_UNSPECIFIED") && e.value(0).number() == 0)
        << e.name();
  }
}

}  // namespace
}  // namespace hydrant
