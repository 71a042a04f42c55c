// Writes reports atomically: a reader never sees a partial file.
#ifndef HYDRANT_TOOLS_LOAD_REPORT_WRITE_FILE_H_
#define HYDRANT_TOOLS_LOAD_REPORT_WRITE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace hydrant::load {

// Whether a file can be written there, checked before a long run; writes nothing. Errors name the
// path.
absl::Status CheckWritable(const std::string& path);

// Writes `path`.part and renames it; special files (a device, a pipe, a link) are written in place.
// Errors name the path and keep the previous content.
absl::Status WriteFile(const std::string& path, std::string_view content);

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_REPORT_WRITE_FILE_H_
