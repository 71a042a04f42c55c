// A temporary folder for a directory store of contexts or prefix blocks; removed with its contents
// by the destructor.
#ifndef HYDRANT_TESTS_STORE_FOLDER_H_
#define HYDRANT_TESTS_STORE_FOLDER_H_

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace hydrant {

class StoreFolder {
 public:
  StoreFolder() {
    path_ = std::filesystem::temp_directory_path() / "hydrant_store_XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~StoreFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string uri() const { return "dir:" + path_; }  // for --context-store and its like
  std::vector<std::filesystem::path> Files() const {  // sorted
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
  }
  std::vector<std::string> Names() const {  // of Files()
    std::vector<std::string> names;
    for (const std::filesystem::path& file : Files()) names.push_back(file.filename());
    return names;
  }

 private:
  std::string path_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_STORE_FOLDER_H_
