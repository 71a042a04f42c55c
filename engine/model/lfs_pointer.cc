#include "engine/model/lfs_pointer.h"

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"

namespace hydrant {

bool IsLfsPointer(std::string_view bytes) {
  return bytes.starts_with("version https://git-lfs.github.com/spec/");
}

absl::Status LfsPointerError(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(path),
                   " is a pointer of Git LFS, not the file itself; run `git lfs pull` "
                   "in its folder, or `hydrant pull ORG/NAME`"));
}

}  // namespace hydrant
