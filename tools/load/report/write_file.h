// Reports are written whole: a reader never finds half of one.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_WRITE_FILE_H_
#define HYDRANT_TOOLS_LOAD_REPORT_WRITE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace hydrant::load {

// Whether a file may be written there, asked before a run of an hour; writes nothing. Errors name
// the path.
absl::Status CheckWritable(const std::string& path);

// Writes `path`.part and renames it; what is no ordinary file (a device, a pipe, a link) is written
// to as it stands. Errors name the path, and leave what was there before.
absl::Status WriteFile(const std::string& path, std::string_view content);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_WRITE_FILE_H_
