#include "engine/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/model/gguf_writer.h"

namespace hydrant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<uint8_t> Build(const std::string& header, size_t data_bytes) {
  ByteWriter file;
  file.PutString(header);
  for (size_t i = 0; i < data_bytes; ++i) file.Put<uint8_t>(static_cast<uint8_t>(i));
  return file.bytes();
}

// Uses a copy of exactly the right size, so that AddressSanitizer sees every read past the end.
absl::StatusOr<std::unique_ptr<SafetensorsFile>> ParseCopy(const std::vector<uint8_t>& bytes,
                                                           size_t size,
                                                           std::unique_ptr<uint8_t[]>* keep) {
  keep->reset(new uint8_t[size]);
  std::copy_n(bytes.begin(), size, keep->get());
  return SafetensorsFile::Parse({keep->get(), size});
}

constexpr char kGood[] =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},"c":{"dtype":"I64","shape":[1],"data_offsets":[32,40]},)"
    R"("d":{"dtype":"F16","shape":[],"data_offsets":[40,42]},"e":{"dtype":"F32","shape":[0,7],"data_offsets":[3,3]}})";

TEST(SafetensorsTest, ReadsTensorsAndToleratesHoles) {
  const std::vector<uint8_t> bytes = Build(kGood, 42);
  const auto file = SafetensorsFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto a = (*file)->Find("a");
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(a->dtype, DType::kF32);
  EXPECT_THAT(a->shape, ElementsAre(2, 3));
  ASSERT_EQ(a->bytes.size(), 24u);
  EXPECT_EQ(a->bytes[23], 23);
  EXPECT_EQ((*file)->Find("b")->bytes[0], 24);
  EXPECT_EQ((*file)->Find("d")->NumElements(), 1);
  EXPECT_EQ((*file)->Find("e")->bytes.size(), 0u);
  EXPECT_EQ((*file)->Find("c").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string((*file)->Find("c").status().message()),
              HasSubstr("tensor 'c' has dtype I64"));
  EXPECT_EQ((*file)->Find("x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*file)->Names().size(), 5u);
}

TEST(SafetensorsTest, EveryTruncationIsAnError) {
  const std::vector<uint8_t> bytes = Build(kGood, 42);
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::unique_ptr<uint8_t[]> keep;
    ASSERT_FALSE(ParseCopy(bytes, size, &keep).ok()) << "cut to " << size << " of " << bytes.size();
  }
}

TEST(SafetensorsTest, SurvivesAnyByteChanged) {
  const std::vector<uint8_t> original = Build(kGood, 42);
  int refused = 0;
  for (size_t at = 0; at < original.size() - 42; ++at) {
    for (const int value :
         std::initializer_list<int>{0, 1, '0', '9', '-', '"', '[', '{', '}', 0x7f, 0x80, 0xff}) {
      std::vector<uint8_t> bytes = original;
      bytes[at] = static_cast<uint8_t>(value);
      std::unique_ptr<uint8_t[]> keep;
      const auto file = ParseCopy(bytes, bytes.size(), &keep);
      if (!file.ok()) {
        ++refused;
        ASSERT_EQ(std::string(file.status().message()).find('\n'), std::string::npos);
        continue;
      }
      uint64_t sum = 0;
      for (const std::string& name : (*file)->Names()) {
        const auto view = (*file)->Find(name);
        if (!view.ok()) continue;
        for (const uint8_t byte : view->bytes) sum += byte;
      }
      ASSERT_LE(sum, 255u * bytes.size());
    }
  }
  EXPECT_GT(refused, 500);
}

struct BadHeader {
  std::string name;
  std::string header;
  std::string message;
};

void PrintTo(const BadHeader& bad, std::ostream* out) { *out << bad.name; }

class BadSafetensorsTest : public testing::TestWithParam<BadHeader> {};

TEST_P(BadSafetensorsTest, IsRefusedWithItsReason) {
  const std::vector<uint8_t> bytes = Build(GetParam().header, 16);
  const absl::Status status = SafetensorsFile::Parse(bytes).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos);
}

std::string One(const std::string& entry) { return R"({"t":)" + entry + "}"; }

INSTANTIATE_TEST_SUITE_P(
    All, BadSafetensorsTest,
    testing::Values(
        BadHeader{"NotJson", "hello", "header: not valid JSON"},
        BadHeader{"NotObject", "[1,2]", "header: not a JSON object"},
        BadHeader{"BadUtf8", "{\"\xff\":1}", "header: not valid JSON"},
        BadHeader{"Trailing", "{} x", "header: not valid JSON"},
        BadHeader{"HugeNumber", R"({"t":1e999})", "header: not valid JSON"},
        BadHeader{"Deep", std::string(100000, '['), "nested deeper than 32"},
        BadHeader{"DeepObjects", R"({"a":)" + std::string(40, '[') + std::string(40, ']') + "}",
                  "nested deeper than 32"},
        BadHeader{
            "Twice",
            R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            "key 't' appears twice"},
        BadHeader{"EntryNotObject", One("3"), "tensor 't': the entry is not an object"},
        BadHeader{"NoDtype", One(R"({"shape":[1],"data_offsets":[0,4]})"), "dtype is missing"},
        BadHeader{"NoShape", One(R"({"dtype":"F32","data_offsets":[0,4]})"), "shape is missing"},
        BadHeader{"NoOffsets", One(R"({"dtype":"F32","shape":[1]})"), "data_offsets is missing"},
        BadHeader{"DtypeUnknown", One(R"({"dtype":"Q4","shape":[1],"data_offsets":[0,4]})"),
                  "dtype 'Q4' is unknown"},
        BadHeader{"DtypeNumber", One(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})"),
                  "dtype is not a string"},
        BadHeader{"ShapeText", One(R"({"dtype":"F32","shape":"1","data_offsets":[0,4]})"),
                  "shape must be an array"},
        BadHeader{"ShapeNegative", One(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"),
                  "not a non-negative integer"},
        BadHeader{"ShapeFraction", One(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"),
                  "not a non-negative integer"},
        BadHeader{"ShapeOverflow",
                  One(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})"),
                  "dimension 1 is 4294967296"},
        BadHeader{"ShapeTooLong",
                  One(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})"),
                  "at most 8"},
        BadHeader{"OffsetsOne", One(R"({"dtype":"F32","shape":[1],"data_offsets":[4]})"),
                  "array of two"},
        BadHeader{"OffsetsNegative", One(R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})"),
                  "array of two non-negative"},
        BadHeader{"OffsetsReversed", One(R"({"dtype":"F32","shape":[1],"data_offsets":[8,4]})"),
                  "data_offsets are 8 to 4"},
        BadHeader{"OffsetsPastEnd", One(R"({"dtype":"F32","shape":[1],"data_offsets":[16,20]})"),
                  "data_offsets are 16 to 20, the file has 16 bytes"},
        BadHeader{
            "OffsetsHuge",
            One(R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551615,18446744073709551615]})"),
            "the file has 16 bytes"},
        BadHeader{"SizeDisagrees", One(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
                  "data_offsets span 4 bytes, F32 of shape [2] needs 8"},
        BadHeader{
            "Overlap",
            R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"u":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
            "tensors 't' and 'u' overlap at offset 2"}),
    [](const auto& info) { return info.param.name; });

TEST(SafetensorsTest, HeaderLengthIsBounded) {
  ByteWriter file;
  file.Put<uint64_t>(200'000'000);
  EXPECT_THAT(std::string(SafetensorsFile::Parse(file.bytes()).status().message()),
              HasSubstr("length of the header is 200000000 bytes, the limit is 100000000"));
  file.bytes().clear();
  file.Put<uint64_t>(50);
  file.Put<uint16_t>(0x7d7b);
  EXPECT_THAT(std::string(SafetensorsFile::Parse(file.bytes()).status().message()),
              HasSubstr("the file ends inside the header: 50 bytes wanted at byte 8, 2 left"));
}

TEST(SafetensorsTest, OpenNamesTheFile) {
  EXPECT_THAT(std::string(SafetensorsFile::Open("LICENSE").status().message()),
              HasSubstr("'LICENSE': "));
}

}  // namespace
}  // namespace hydrant
