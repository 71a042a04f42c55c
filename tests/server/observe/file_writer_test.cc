// FileWriter on files that accept text, on a full disk and on a pipe that is not read.
#include "server/observe/file_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "tests/test_files.h"

namespace hydrant {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kPatient{60};

std::string TempPath() {
  return testing::TempDir() + "/file_writer_" + std::to_string(getpid()) + "_" +
         testing::UnitTest::GetInstance()->current_test_info()->name();
}

TEST(FileWriter, WritesInOrder) {
  const std::string path = TempPath();
  std::string expected;
  {
    auto file = FileWriter::Open(path, 1 << 20);
    ASSERT_TRUE(file.ok()) << file.status();
    for (int i = 0; i < 1000; ++i) {
      const std::string line = std::to_string(i) + "\n";
      ASSERT_TRUE((*file)->Write(line).ok());
      expected += line;
    }
    ASSERT_TRUE((*file)->Flush(kPatient));
    EXPECT_EQ(ReadTextFile(path), expected);
    ASSERT_TRUE((*file)->Write("last").ok());
  }
  EXPECT_EQ(ReadTextFile(path), expected + "last");
  unlink(path.c_str());
}

TEST(FileWriter, AFullDiskIsSaid) {
  auto file = FileWriter::Open("/dev/full", 1 << 20);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Write("a").ok());
  EXPECT_FALSE((*file)->Flush(kPatient));
  EXPECT_THAT(std::string((*file)->Write("b").message()), HasSubstr("cannot write /dev/full"));
}

// A pipe that is not read stands for a hung disk: neither Write() nor the destructor blocks.
TEST(FileWriter, AFullPipeBlocksNoCaller) {
  const std::string path = TempPath();
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(FileWriter::Open(path, 10).status().message()), HasSubstr(path));
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  {
    auto file = FileWriter::Open(path, 1 << 20);
    ASSERT_TRUE(file.ok()) << file.status();
    absl::Status status;
    for (int i = 0; i < 100 && status.ok(); ++i) status = (*file)->Write(std::string(1 << 16, 'x'));
    EXPECT_THAT(std::string(status.message()), HasSubstr("not take it as fast as it comes"));
    EXPECT_FALSE((*file)->Write("y").ok());
  }
  close(reader);
  unlink(path.c_str());
}

}  // namespace
}  // namespace hydrant
