#include "engine/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/engine/model/gguf_writer.h"
#include "tests/engine/model/quantize.h"

namespace hydrant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Parses a copy of exactly the right size, so that the address sanitizer sees every read past the
// end.
absl::StatusOr<std::unique_ptr<GgufFile>> ParseCopy(const std::vector<uint8_t>& bytes, size_t size,
                                                    std::unique_ptr<uint8_t[]>* keep) {
  keep->reset(new uint8_t[size]);
  std::copy_n(bytes.begin(), size, keep->get());
  return GgufFile::Parse({keep->get(), size});
}

absl::Status ParseStatus(const std::vector<uint8_t>& bytes) {
  std::unique_ptr<uint8_t[]> keep;
  return ParseCopy(bytes, bytes.size(), &keep).status();
}

std::vector<uint8_t> Zeros(DType dtype, size_t count) {
  return std::vector<uint8_t>(BytesOf(dtype, count));
}

// A value of every type, arrays of every element type, tensors of several types and ranks.
GgufWriter FullFile() {
  GgufWriter writer;
  writer.AddValue<uint8_t>("u8", GgufWriter::kUint8, 200);
  writer.AddValue<int8_t>("i8", GgufWriter::kInt8, -100);
  writer.AddValue<uint16_t>("u16", GgufWriter::kUint16, 60000);
  writer.AddValue<int16_t>("i16", GgufWriter::kInt16, -30000);
  writer.AddUint32("u32", 4000000000u);
  writer.AddValue<int32_t>("i32", GgufWriter::kInt32, -2000000000);
  writer.AddValue<uint64_t>("u64", GgufWriter::kUint64, 1ull << 40);
  writer.AddValue<uint64_t>("u64big", GgufWriter::kUint64, ~0ull);
  writer.AddValue<int64_t>("i64", GgufWriter::kInt64, std::numeric_limits<int64_t>::min());
  writer.AddFloat("f32", 1.5);
  writer.AddValue<double>("f64", GgufWriter::kFloat64, 0.1);
  writer.AddBool("yes", true);
  writer.AddString("text", std::string("a\0b", 3));
  writer.AddArray<uint16_t>("a.u16", GgufWriter::kUint16, {1, 65535});
  writer.AddArray<int8_t>("a.i8", GgufWriter::kInt8, {-1, 2});
  writer.AddArray<uint64_t>("a.u64", GgufWriter::kUint64, {1, 2});
  writer.AddArray<uint64_t>("a.u64big", GgufWriter::kUint64, {1, ~0ull});
  writer.AddArray<float>("a.f32", GgufWriter::kFloat32, {0.5f, -2.0f});
  writer.AddArray<uint8_t>("a.bool", GgufWriter::kBool, {1, 0, 1});
  writer.AddArray<int32_t>("a.empty", GgufWriter::kInt32, {});
  writer.AddStrings("a.text", {"", "xyz"});
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  writer.AddTensor("matrix", {2, 3}, DType::kF32, Quantize(DType::kF32, values));
  writer.AddTensor("vector", {6}, DType::kBF16, Quantize(DType::kBF16, values));
  writer.AddTensor("blocks", {3, 64}, DType::kQ4_0, Zeros(DType::kQ4_0, 192));
  writer.AddTensor("deep", {2, 1, 3, 256}, DType::kQ6_K, Zeros(DType::kQ6_K, 2 * 3 * 256));
  return writer;
}

TEST(GgufTest, ReadsEveryTypeOfValue) {
  const std::vector<uint8_t> bytes = FullFile().Build();
  const auto parsed = GgufFile::Parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const GgufFile& file = **parsed;
  EXPECT_EQ(file.GetInt("u8").value(), 200);
  EXPECT_EQ(file.GetInt("i8").value(), -100);
  EXPECT_EQ(file.GetInt("u16").value(), 60000);
  EXPECT_EQ(file.GetInt("i16").value(), -30000);
  EXPECT_EQ(file.GetInt("u32").value(), 4000000000);
  EXPECT_EQ(file.GetInt("i32").value(), -2000000000);
  EXPECT_EQ(file.GetInt("u64").value(), int64_t{1} << 40);
  EXPECT_EQ(std::get<uint64_t>(file.metadata().at("u64big")), ~0ull);
  EXPECT_EQ(file.GetInt("i64").value(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(file.GetFloat("f32").value(), 1.5);
  EXPECT_EQ(file.GetFloat("f64").value(), 0.1);
  EXPECT_TRUE(file.GetBool("yes").value());
  EXPECT_EQ(file.GetString("text").value(), std::string("a\0b", 3));
  EXPECT_THAT(file.GetInts("a.u16").value(), ElementsAre(1, 65535));
  EXPECT_THAT(file.GetInts("a.i8").value(), ElementsAre(-1, 2));
  EXPECT_THAT(file.GetInts("a.u64").value(), ElementsAre(1, 2));
  EXPECT_THAT(std::get<std::vector<uint64_t>>(file.metadata().at("a.u64big")),
              ElementsAre(1, ~0ull));
  EXPECT_THAT(file.GetFloats("a.f32").value(), ElementsAre(0.5, -2.0));
  EXPECT_THAT(std::get<std::vector<bool>>(file.metadata().at("a.bool")),
              ElementsAre(true, false, true));
  EXPECT_THAT(file.GetInts("a.empty").value(), ElementsAre());
  EXPECT_THAT(file.GetStrings("a.text").value(), ElementsAre("", "xyz"));
  EXPECT_EQ(file.metadata().size(), 21u);
}

TEST(GgufTest, ReadsTensorsWithTheOutermostDimensionFirst) {
  const std::vector<uint8_t> bytes = FullFile().Build();
  const auto parsed = GgufFile::Parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto& tensors = (*parsed)->tensors();
  ASSERT_EQ(tensors.size(), 4u);
  const TensorView& matrix = tensors.at("matrix");
  EXPECT_EQ(matrix.dtype, DType::kF32);
  EXPECT_THAT(matrix.shape, ElementsAre(2, 3));
  ASSERT_EQ(matrix.bytes.size(), 24u);
  float fifth = 0;
  std::memcpy(&fifth, matrix.bytes.data() + 16, sizeof fifth);
  EXPECT_EQ(fifth, 5.0f);
  EXPECT_THAT(tensors.at("vector").shape, ElementsAre(6));
  EXPECT_EQ(tensors.at("blocks").bytes.size(), 6u * 18);
  EXPECT_THAT(tensors.at("deep").shape, ElementsAre(2, 1, 3, 256));
  EXPECT_EQ(tensors.at("deep").bytes.size(), 6u * 210);
  EXPECT_EQ(tensors.at("deep").bytes.data() + 6 * 210, bytes.data() + bytes.size());
}

TEST(GgufTest, LookUpErrorsNameTheKey) {
  const std::vector<uint8_t> bytes = FullFile().Build();
  const auto parsed = GgufFile::Parse(bytes);
  ASSERT_TRUE(parsed.ok());
  const GgufFile& file = **parsed;
  EXPECT_TRUE(file.Has("u8"));
  EXPECT_FALSE(file.Has("none"));
  EXPECT_EQ(file.GetInt("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file.GetInt("none").status().message()), HasSubstr("'none' is missing"));
  EXPECT_EQ(file.GetString("u8").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.GetString("u8").status().message()),
              HasSubstr("type integer, wanted string"));
  EXPECT_FALSE(file.GetInt("u64big").ok());
  EXPECT_FALSE(file.GetInt("f32").ok());
  EXPECT_FALSE(file.GetBool("u8").ok());
  EXPECT_FALSE(file.GetInts("a.f32").ok());
  EXPECT_FALSE(file.GetFloats("a.text").ok());
  EXPECT_FALSE(file.GetStrings("text").ok());
}

TEST(GgufTest, EveryTruncationIsAnError) {
  const std::vector<uint8_t> bytes = FullFile().Build();
  ASSERT_TRUE(ParseStatus(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::unique_ptr<uint8_t[]> keep;
    const absl::Status status = ParseCopy(bytes, size, &keep).status();
    ASSERT_FALSE(status.ok()) << "cut to " << size << " of " << bytes.size();
    ASSERT_EQ(std::string(status.message()).find('\n'), std::string::npos);
  }
}

// Writes extreme numbers over every position of the header. Not every change is an error (a text
// may change), but none may crash, read out of bounds, or allocate by an unchecked count.
TEST(GgufTest, SurvivesExtremeNumbersAnywhere) {
  const std::vector<uint8_t> original = FullFile().Build();
  const uint64_t extremes[] = {0,          1,          0x7f,       0xff,
                               0x7fffffff, 0x80000000, 0xffffffff, 1ull << 62,
                               ~0ull >> 1, ~0ull - 31, ~0ull};
  int refused = 0;
  int total = 0;
  for (size_t at = 0; at < original.size() - 8; ++at) {
    for (const uint64_t value : extremes) {
      for (const size_t width : {size_t{1}, size_t{4}, size_t{8}}) {
        std::vector<uint8_t> bytes = original;
        std::memcpy(bytes.data() + at, &value, width);
        std::unique_ptr<uint8_t[]> keep;
        const auto parsed = ParseCopy(bytes, bytes.size(), &keep);
        ++total;
        if (!parsed.ok()) {
          ++refused;
          continue;
        }
        uint64_t sum = 0;  // touch every byte of every view
        for (const auto& [name, view] : (*parsed)->tensors()) {
          for (const uint8_t byte : view.bytes) sum += byte;
        }
        ASSERT_LE(sum, 255u * bytes.size() * 4);
      }
    }
  }
  EXPECT_GT(refused, total / 5);
}

struct BadFile {
  std::string name;
  std::function<std::vector<uint8_t>()> build;
  std::string message;
};

std::vector<uint8_t> With(const std::function<void(GgufWriter&)>& change) {
  GgufWriter writer;
  change(writer);
  return writer.Build();
}

// A valid small file with `value` written over byte `at`.
template <typename T>
std::vector<uint8_t> Patched(size_t at, T value) {
  GgufWriter writer;
  writer.AddUint32("k", 7);
  writer.AddTensor("t", {4}, DType::kF32, Zeros(DType::kF32, 4));
  std::vector<uint8_t> bytes = writer.Build();
  EXPECT_TRUE(ParseStatus(bytes).ok());
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }

std::vector<BadFile> BadFiles() {
  // Layout of Patched(): magic 0, version 4, tensors 8, pairs 16, key length 24, key 32, type 33,
  // value 37, name length 41, name 49, dimensions 50, dimension 54, type 62, offset 66, end 74,
  // data 96.
  const std::vector<uint8_t> f32x4 = Zeros(DType::kF32, 4);
  return {
      {"Magic", [] { return Patched<uint8_t>(0, 'H'); }, "not a GGUF file"},
      {"Version1", [] { return Patched<uint32_t>(4, 1); }, "GGUF version is 1, only version 3"},
      {"Version2", [] { return Patched<uint32_t>(4, 2); }, "GGUF version is 2, only version 3"},
      {"Version4", [] { return Patched<uint32_t>(4, 4); }, "GGUF version is 4, only version 3"},
      {"BigEndian", [] { return Patched<uint32_t>(4, 0x03000000); }, "big endian"},
      {"TensorCount", [] { return Patched<uint64_t>(8, 1ull << 60); },
       "tensor count 1152921504606846976 does not fit"},
      {"PairCount", [] { return Patched<uint64_t>(16, ~0ull); },
       "metadata count 18446744073709551615 does not fit"},
      {"KeyLength", [] { return Patched<uint64_t>(24, 65536); },
       "length of a metadata key is 65536 bytes, the limit is 65535"},
      {"KeyPastEnd", [] { return Patched<uint64_t>(24, 60000); },
       "the file ends inside a metadata key"},
      {"ValueType", [] { return Patched<uint32_t>(33, 13); },
       "metadata key 'k': value type 13 is unknown"},
      {"NameLength", [] { return Patched<uint64_t>(41, 65); },
       "length of a tensor name is 65 bytes, the limit is 64"},
      {"NoDimensions", [] { return Patched<uint32_t>(50, 0); },
       "tensor 't': number of dimensions is 0"},
      {"FiveDimensions", [] { return Patched<uint32_t>(50, 5); },
       "number of dimensions is 5, the limit is 1 to 4"},
      {"ZeroDimension", [] { return Patched<uint64_t>(54, 0); }, "dimension 0 is 0"},
      {"HugeDimension", [] { return Patched<uint64_t>(54, ~0ull); },
       "dimension 0 is 18446744073709551615"},
      {"DataTooLong", [] { return Patched<uint64_t>(54, 5); },
       "tensor 't': 20 bytes at offset 0 are not inside the 16 bytes"},
      {"TensorType", [] { return Patched<uint32_t>(62, 16); },
       "tensor 't': type iq2_xxs (16) is not supported"},
      {"UnknownType", [] { return Patched<uint32_t>(62, 1000); },
       "tensor 't': type 1000 is not supported"},
      {"RowNotBlocks", [] { return Patched<uint32_t>(62, 2); },
       "row length 4 is not a multiple of the 32 values of a q4_0"},
      {"OffsetUnaligned", [] { return Patched<uint64_t>(66, 4); },
       "offset 4 is not a multiple of the alignment 32"},
      {"OffsetPastEnd", [] { return Patched<uint64_t>(66, 32); },
       "16 bytes at offset 32 are not inside"},
      {"OffsetOverflow", [] { return Patched<uint64_t>(66, ~0ull - 31); },
       "are not inside the 16 bytes"},
      {"DimensionProduct",
       [&] {
         return With([](GgufWriter& w) {
           w.AddTensorAt("t", {1ll << 20, 1ll << 20, 1ll << 20}, 0, 0);
         });
       },
       "dimension 2 is 1048576, the limit is 1 to 256"},
      {"DuplicateKey",
       [] {
         return With([](GgufWriter& w) {
           w.AddBool("x", true);
           w.AddUint32("x", 1);
         });
       },
       "metadata key 'x' appears twice"},
      {"DuplicateTensor",
       [f32x4] {
         return With([&](GgufWriter& w) {
           w.AddTensor("x", {4}, DType::kF32, f32x4);
           w.AddTensor("x", {4}, DType::kF32, f32x4);
         });
       },
       "tensor 'x' appears twice"},
      {"Overlap",
       [f32x4] {
         return With([&](GgufWriter& w) {
           w.AddTensor("x", {4}, DType::kF32, f32x4);
           w.AddTensorAt("y", {2}, 0, 0);
         });
       },
       "overlap at offset 0"},
      {"EmptyKey", [] { return With([](GgufWriter& w) { w.AddUint32("", 1); }); },
       "metadata key 0 is empty"},
      {"BadBool",
       [] { return With([](GgufWriter& w) { w.AddValue<uint8_t>("b", GgufWriter::kBool, 2); }); },
       "metadata key 'b': a bool is 2"},
      {"NestedArray",
       [] {
         return With([](GgufWriter& w) { w.AddArray<uint64_t>("n", GgufWriter::kArray, {0, 0}); });
       },
       "metadata key 'n': arrays of arrays"},
      {"ArrayType", [] { return With([](GgufWriter& w) { w.AddArray<uint8_t>("n", 77, {0}); }); },
       "array element type 77 is unknown"},
      {"ArrayCount",
       [] {
         return With([](GgufWriter& w) {
           ByteWriter bytes;
           bytes.Put<uint32_t>(GgufWriter::kUint64);
           bytes.Put<uint64_t>(1ull << 61);
           w.AddRaw("n", GgufWriter::kArray, bytes.bytes());
         });
       },
       "array length 2305843009213693952 does not fit"},
      {"StringLength",
       [] {
         return With(
             [](GgufWriter& w) { w.AddValue<uint64_t>("s", GgufWriter::kString, 1 << 20); });
       },
       "metadata key 's': the file ends inside a string: 1048576 bytes wanted at byte 45, 0 left"},
      {"AlignmentNotPower",
       [f32x4] {
         return With([&](GgufWriter& w) {
           w.AddUint32("general.alignment", 24);
           w.AddTensor("t", {4}, DType::kF32, f32x4);
         });
       },
       "general.alignment is 24, it must be a power of two"},
      {"AlignmentZero",
       [f32x4] {
         return With([&](GgufWriter& w) {
           w.AddUint32("general.alignment", 0);
           w.AddTensor("t", {4}, DType::kF32, f32x4);
         });
       },
       "general.alignment is 0"},
      {"AlignmentText",
       [f32x4] {
         return With([&](GgufWriter& w) {
           w.AddString("general.alignment", "32");
           w.AddTensor("t", {4}, DType::kF32, f32x4);
         });
       },
       "general.alignment is a value of type string"},
      {"UglyNameStaysOneLine",
       [] { return With([](GgufWriter& w) { w.AddTensorAt("a\nb\x01", {3}, 2, 0); }); },
       "tensor 'a\\nb\\x01'"},
  };
}

class BadGgufTest : public testing::TestWithParam<BadFile> {};

TEST_P(BadGgufTest, IsRefusedWithItsReason) {
  const absl::Status status = ParseStatus(GetParam().build());
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, BadGgufTest, testing::ValuesIn(BadFiles()),
                         [](const auto& info) { return info.param.name; });

TEST(GgufTest, HonoursTheAnnouncedAlignment) {
  GgufWriter writer;
  writer.alignment = 256;
  writer.AddUint32("general.alignment", 256);
  writer.AddTensor("a", {3}, DType::kF32, Quantize(DType::kF32, std::vector<float>{1, 2, 3}));
  writer.AddTensor("b", {1}, DType::kF32, Quantize(DType::kF32, std::vector<float>{4}));
  const std::vector<uint8_t> bytes = writer.Build();
  const auto parsed = GgufFile::Parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(((*parsed)->tensors().at("b").bytes.data() - bytes.data()) % 256, 0);
  float value = 0;
  std::memcpy(&value, (*parsed)->tensors().at("b").bytes.data(), sizeof value);
  EXPECT_EQ(value, 4.0f);
}

TEST(GgufTest, AVocabularyAloneHasNoDataSection) {
  GgufWriter writer;
  writer.AddStrings("tokenizer.ggml.tokens", {"a", "b"});
  EXPECT_TRUE(ParseStatus(writer.Build()).ok());
}

TEST(GgufTest, OpenNamesTheFile) {
  const absl::Status missing = GgufFile::Open("/nonexistent/x.gguf").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nonexistent/x.gguf"));
  EXPECT_THAT(std::string(GgufFile::Open(testing::TempDir()).status().message()),
              HasSubstr("not a regular file"));
  EXPECT_THAT(std::string(GgufFile::Open("LICENSE").status().message()),
              HasSubstr("'LICENSE': not a GGUF file"));
}

}  // namespace
}  // namespace hydrant
