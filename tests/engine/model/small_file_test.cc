// Paths to files of every kind: each read ends, and no call waits for a writer.
#include "engine/model/small_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace hydrant {
namespace {

using testing::HasSubstr;

class SmallFileTest : public testing::Test {
 protected:
  SmallFileTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~SmallFileTest() override { std::filesystem::remove_all(folder_); }
  std::string Error(const std::string& path, uintmax_t max_bytes = 100) {
    return std::string(ReadSmallFile(path, max_bytes).status().message());
  }

  const std::string folder_ = testing::TempDir() + "/small_file_test";
};

TEST_F(SmallFileTest, ReadsUpToTheLimit) {
  const std::string path = folder_ + "/a";
  for (const size_t size : {0, 1, 100}) {
    const std::string text(size, 'x');
    std::ofstream(path) << text;
    EXPECT_EQ(ReadSmallFile(path, 100).value(), text);
  }
  std::ofstream(path) << std::string(101, 'x');
  EXPECT_EQ(Error(path), path + ": has more than the 100 bytes that are read");
  std::filesystem::create_symlink(path, folder_ + "/link");
  EXPECT_EQ(ReadSmallFile(folder_ + "/link", 101)->size(), 101u);
  EXPECT_GT(ReadSmallFile("/proc/self/status", 1 << 20)->size(), 100u) << "says that it is empty";
}

TEST_F(SmallFileTest, OtherKindsOfFilesAreRefusedAtOnce) {
  ASSERT_EQ(mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(Error(folder_ + "/fifo"), folder_ + "/fifo: is no regular file");
  EXPECT_EQ(Error("/dev/zero"), "/dev/zero: is no regular file");
  EXPECT_THAT(Error(folder_), HasSubstr("cannot be read: Is a directory"));
  EXPECT_THAT(Error(folder_ + "/none"), HasSubstr("cannot be read: No such file"));
  EXPECT_TRUE(absl::IsNotFound(ReadSmallFile(folder_ + "/none", 1).status()));
}

}  // namespace
}  // namespace hydrant
