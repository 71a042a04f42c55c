#include "engine/model/gguf_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "engine/model/model_source.h"
#include "tests/engine/model/gguf_writer.h"
#include "tests/engine/model/quantize.h"
#include "tests/engine/model/tiny_model.h"

namespace hydrant {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string Folder() {
  const std::string folder =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
  fs::create_directories(folder);
  return folder;
}

std::string PathOf(const std::string& folder, int no, int count) {
  char ending[32];
  std::snprintf(ending, sizeof ending, "/m-%05d-of-%05d.gguf", no + 1, count);
  return folder + ending;
}

void WriteFile(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

struct Keys {
  int no, count, tensors;
};

GgufWriter Begin(const Keys& keys) {
  GgufWriter writer;
  writer.AddValue<uint16_t>("split.no", GgufWriter::kUint16, static_cast<uint16_t>(keys.no));
  writer.AddValue<uint16_t>("split.count", GgufWriter::kUint16, static_cast<uint16_t>(keys.count));
  writer.AddValue<int32_t>("split.tensors.count", GgufWriter::kInt32, keys.tensors);
  return writer;
}

void AddValue(GgufWriter& writer, const std::string& name, float value) {
  writer.AddTensor(name, {1}, DType::kF32, Quantize(DType::kF32, std::vector<float>{value}));
}

// Three files with one tensor each; the first has the metadata.
std::vector<GgufWriter> ThreeFiles() {
  std::vector<GgufWriter> files;
  for (int no = 0; no < 3; ++no) {
    files.push_back(Begin({no, 3, 3}));
    if (no == 0) files.back().AddString("general.name", "cut");
    AddValue(files.back(), std::string(1, static_cast<char>('a' + no)), static_cast<float>(no));
  }
  return files;
}

std::string WriteAll(const std::vector<GgufWriter>& files) {
  std::string folder = Folder();
  for (size_t no = 0; no < files.size(); ++no)
    WriteFile(PathOf(folder, static_cast<int>(no), 3), files[no].Build());
  return folder;
}

TEST(GgufSplitTest, AnyFileNamesAll) {
  const std::string folder = WriteAll(ThreeFiles());
  for (int no = 0; no < 3; ++no) {
    const auto file = GgufFile::Open(PathOf(folder, no, 3));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->GetString("general.name").value(), "cut");
    EXPECT_EQ((*file)->path(), PathOf(folder, 0, 3));
    ASSERT_EQ((*file)->tensors().size(), 3u);
    for (int t = 0; t < 3; ++t) {
      float value = -1;
      std::memcpy(&value, (*file)->tensors().at(std::string(1, 'a' + t)).bytes.data(), 4);
      EXPECT_EQ(value, static_cast<float>(t));
    }
    EXPECT_TRUE((*file)->CheckUnchanged().ok());
  }
}

// As with llama.cpp's --no-tensor-first-split; and a split model with a single file.
TEST(GgufSplitTest, TheFirstFileMayHaveNoTensors) {
  std::vector<GgufWriter> files;
  for (int no = 0; no < 3; ++no) {
    files.push_back(Begin({no, 3, 2}));
    if (no > 0) AddValue(files.back(), std::to_string(no), 1);
  }
  const auto file = GgufFile::Open(PathOf(WriteAll(files), 0, 3));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 2u);

  GgufWriter single = Begin({0, 1, 1});
  AddValue(single, "x", 1);
  WriteFile(Folder() + "/any.gguf", single.Build());
  EXPECT_TRUE(GgufFile::Open(Folder() + "/any.gguf").ok());
}

TEST(GgufSplitTest, AChangeOfAnyFileIsSeen) {
  const std::string folder = WriteAll(ThreeFiles());
  const auto file = GgufFile::Open(PathOf(folder, 0, 3));
  ASSERT_TRUE(file.ok());
  const fs::path last = PathOf(folder, 2, 3);
  fs::last_write_time(last, fs::last_write_time(last) + std::chrono::seconds(5));
  EXPECT_THAT(std::string((*file)->CheckUnchanged().message()), HasSubstr("-00003-of-00003.gguf"));
}

struct BadSplit {
  std::string name;
  std::function<void(const std::string& folder)> spoil;
  std::vector<std::string> says;
};

std::vector<BadSplit> BadSplits() {
  const auto rewrite = [](int no, const std::function<GgufWriter()>& make) {
    return [=](const std::string& folder) { WriteFile(PathOf(folder, no, 3), make().Build()); };
  };
  const auto with = [](Keys keys, const std::string& tensor) {
    return [=] {
      GgufWriter writer = Begin(keys);
      AddValue(writer, tensor, 1);
      return writer;
    };
  };
  return {
      {"Missing",
       [](const std::string& folder) { fs::remove(PathOf(folder, 1, 3)); },
       {"file 2 of the 3 of the model", "m-00002-of-00003.gguf", "No such file"}},
      {"CutShort",
       [](const std::string& folder) { fs::resize_file(PathOf(folder, 2, 3), 40); },
       {"file 3 of the 3", "m-00003-of-00003.gguf", "left in the file"}},
      {"WrongNumber",
       rewrite(2, with({1, 3, 3}, "c")),
       {"00003-of", "'split.no' is 1", "must be 2"}},
      {"WrongCount", rewrite(1, with({1, 4, 3}, "b")), {"00002-of", "'split.count' is 4", "be 3"}},
      {"WrongTensors",
       rewrite(1, with({1, 3, 9}, "b")),
       {"00002-of", "'split.tensors.count' is 9", "must be 3"}},
      {"NotSplit",
       rewrite(1,
               [] {
                 GgufWriter writer;
                 AddValue(writer, "b", 1);
                 return writer;
               }),
       {"00002-of", "'split.count' is 1", "must be 3"}},
      {"TensorTwice",
       rewrite(1, with({1, 3, 3}, "a")),
       {"00002-of", "'a' appears in a file before"}},
      {"TensorMissing",
       [](const std::string& folder) {
         for (int no = 0; no < 3; ++no) {
           GgufWriter writer = Begin({no, 3, 4});
           AddValue(writer, std::to_string(no), 1);
           WriteFile(PathOf(folder, no, 3), writer.Build());
         }
       },
       {"'split.tensors.count' is 4", "the 3 files have 3"}},
      {"OtherMetadata",
       rewrite(1,
               [] {
                 GgufWriter writer = Begin({1, 3, 3});
                 writer.AddString("general.name", "other");
                 AddValue(writer, "b", 1);
                 return writer;
               }),
       {"00002-of", "'general.name' is not what it is in the first file"}},
      {"Renamed",
       [](const std::string& folder) {
         fs::copy_file(PathOf(folder, 1, 3), PathOf(folder, 0, 3),
                       fs::copy_options::overwrite_existing);
       },
       {"00001-of", "split.no is 1 and split.count 3", "does not end in '-00002-of-00003.gguf'"}},
      {"NoTotal",
       rewrite(0,
               [] {
                 GgufWriter writer;
                 writer.AddUint32("split.count", 3);
                 writer.AddUint32("split.no", 0);
                 return writer;
               }),
       {"00001-of", "'split.tensors.count' is missing"}},
      {"TooMany",
       rewrite(0, with({0, 5000, 3}, "a")),
       {"00001-of", "'split.count' is 5000, the limit is 1 to 4096"}},
      {"BeyondTheCount",
       rewrite(0, with({3, 3, 3}, "a")),
       {"'split.no' is 3, the limit is 0 to 2"}},
  };
}

class BadGgufSplitTest : public testing::TestWithParam<BadSplit> {};

TEST_P(BadGgufSplitTest, IsRefusedWithFileAndField) {
  const std::string folder = testing::TempDir() + "/BadGgufSplit" + GetParam().name;
  fs::create_directories(folder);
  const std::vector<GgufWriter> files = ThreeFiles();
  for (int no = 0; no < 3; ++no) WriteFile(PathOf(folder, no, 3), files[no].Build());
  GetParam().spoil(folder);
  const std::string message(GgufFile::Open(PathOf(folder, 0, 3)).status().message());
  for (const std::string& text : GetParam().says) EXPECT_THAT(message, HasSubstr(text));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, BadGgufSplitTest, testing::ValuesIn(BadSplits()),
                         [](const auto& info) { return info.param.name; });

TEST(GgufSplitTest, NamesOfParts) {
  EXPECT_EQ(GgufPartLength("big-00001-of-00003.gguf"), 15u);
  EXPECT_EQ(GgufPartLength("-00001-of-00003.gguf"), 15u);
  for (const char* whole : {"big.gguf", "big-00001-of-00003", "big-0001-of-00003.gguf", "",
                            "big-00001-of-0000x.gguf", "big-00001_of-00003.gguf", ".gguf"})
    EXPECT_EQ(GgufPartLength(whole), 0u) << whole;
}

TEST(GgufSplitTest, FilesThatWereParsedAreJoined) {
  std::vector<std::vector<uint8_t>> bytes;
  for (const GgufWriter& writer : ThreeFiles()) bytes.push_back(writer.Build());
  const auto parse = [&](size_t count) {
    std::vector<std::unique_ptr<GgufFile>> files;
    for (size_t i = 0; i < count; ++i) files.push_back(*GgufFile::Parse(bytes[i]));
    return GgufFile::Join(std::move(files));
  };
  EXPECT_TRUE(parse(3).ok());
  EXPECT_THAT(std::string(parse(2).status().message()), HasSubstr("there are 2 files"));
  EXPECT_FALSE(parse(0).ok());
}

}  // namespace
}  // namespace hydrant
