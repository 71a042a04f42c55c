#include "engine/model/gguf_split.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr char kNo[] = "split.no";
constexpr char kCount[] = "split.count";
constexpr char kTensors[] = "split.tensors.count";
constexpr int64_t kMaxFiles = 4096;

absl::Status CheckRange(const char* key, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("metadata key ", Quoted(key), " is ", value,
                                                 ", the limit is ", least, " to ", most));
}

std::string Ending(int64_t no, int64_t count) {
  return absl::StrCat("-", absl::Dec(no + 1, absl::kZeroPad5), "-of-",
                      absl::Dec(count, absl::kZeroPad5), ".gguf");
}

}  // namespace

absl::StatusOr<GgufSplit> ReadGgufSplit(const GgufFile& file) {
  GgufSplit split;
  if (!file.Has(kCount)) return split;
  HYDRANT_ASSIGN_OR_RETURN(split.count, file.GetInt(kCount));
  if (split.count == 0) return GgufSplit();  // the files were merged again
  HYDRANT_RETURN_IF_ERROR(CheckRange(kCount, split.count, 1, kMaxFiles));
  HYDRANT_ASSIGN_OR_RETURN(split.no, file.GetInt(kNo));
  HYDRANT_RETURN_IF_ERROR(CheckRange(kNo, split.no, 0, split.count - 1));
  HYDRANT_ASSIGN_OR_RETURN(split.tensors, file.GetInt(kTensors));
  return split;
}

absl::StatusOr<std::vector<std::string>> GgufSplitPaths(const std::string& path,
                                                        const GgufSplit& split) {
  const std::string ending = Ending(split.no, split.count);
  if (!path.ends_with(ending)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(path), ": split.no is ", split.no, " and split.count ", split.count,
                     ", but its name does not end in ", Quoted(ending)));
  }
  const std::string begin = path.substr(0, path.size() - ending.size());
  std::vector<std::string> paths;
  for (int64_t no = 0; no < split.count; ++no) paths.push_back(begin + Ending(no, split.count));
  return paths;
}

size_t GgufPartLength(std::string_view name) {
  constexpr std::string_view kPattern = "-00000-of-00000", kEnding = ".gguf";
  const size_t length = kPattern.size() + kEnding.size();
  if (!name.ends_with(kEnding) || name.size() < length) return 0;
  const std::string_view part = name.substr(name.size() - length, kPattern.size());
  const bool fits = std::equal(part.begin(), part.end(), kPattern.begin(), [](char c, char wanted) {
    return wanted == '0' ? absl::ascii_isdigit(c) : c == wanted;
  });
  return fits ? kPattern.size() : 0;
}

absl::Status CheckGgufSplit(const GgufFile& first, const GgufFile& file, int64_t no) {
  HYDRANT_ASSIGN_OR_RETURN(const GgufSplit wanted, ReadGgufSplit(first));
  HYDRANT_ASSIGN_OR_RETURN(const GgufSplit split, ReadGgufSplit(file));
  const struct {
    const char* key;
    int64_t value, wanted;
  } checks[] = {{kCount, split.count, wanted.count},
                {kNo, split.no, no},
                {kTensors, split.tensors, wanted.tensors}};
  for (const auto& check : checks) {
    if (check.value == check.wanted) continue;
    return absl::InvalidArgumentError(absl::StrCat("metadata key ", Quoted(check.key), " is ",
                                                   check.value, ", in file ", no + 1, " of ",
                                                   wanted.count, " it must be ", check.wanted));
  }
  for (const auto& [key, value] : file.metadata()) {
    if (key.starts_with("split.") || key == "general.alignment") continue;  // each file has its own
    const auto it = first.metadata().find(key);
    if (it != first.metadata().end() && it->second == value) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("metadata key ", Quoted(key), " is not what it is in the first file"));
  }
  return absl::OkStatus();
}

}  // namespace hydrant
