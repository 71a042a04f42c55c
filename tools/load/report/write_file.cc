#include "tools/load/report/write_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"

namespace hydrant::load {
namespace {

absl::Status Error(const std::string& path, int why) {
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", std::strerror(why)));
}

// Returns 0 or errno. `mode` as in fopen().
int WriteInPlace(const std::string& path, const char* mode, std::string_view content) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) return errno;
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const int why = errno;
  const bool closed = std::fclose(file) == 0;
  if (!written) return why != 0 ? why : EIO;
  return closed ? 0 : errno;
}

}  // namespace

absl::Status CheckWritable(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(there)) return Error(path, EISDIR);
  if (std::filesystem::exists(there) && access(path.c_str(), W_OK) != 0) return Error(path, errno);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) return Error(path, errno);
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, std::string_view content) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::symlink_status(path, ignored);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    const int why = WriteInPlace(path, "wb", content);
    return why == 0 ? absl::OkStatus() : Error(path, why);
  }
  // A random name: it must not overwrite a file of the user.
  const std::string part = absl::StrCat(path, ".", absl::Hex(std::random_device()()), ".part");
  int why = WriteInPlace(part, "wbx", content);
  if (why == EEXIST) return Error(part, why);
  if (why == 0 && std::rename(part.c_str(), path.c_str()) != 0) why = errno;
  if (why == 0) return absl::OkStatus();
  std::remove(part.c_str());
  return Error(path, why);
}

}  // namespace hydrant::load
