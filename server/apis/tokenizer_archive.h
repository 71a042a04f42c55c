// A tokenizer's files as one zip archive, for clients that tokenize themselves. Stateless.
#ifndef HYDRANT_SERVER_APIS_TOKENIZER_ARCHIVE_H_
#define HYDRANT_SERVER_APIS_TOKENIZER_ARCHIVE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "server/wire/served_model.h"

namespace hydrant {

// Files by name, stored without compression (PKWARE's APPNOTE, method 0). REQUIRES: together below
// 4 GiB
std::string ZipOf(const std::map<std::string, std::string>& files);

// The tokenizer's files by name, as Hugging Face's libraries read them: the model's own, or made
// from its GGUF file. Reads files. FailedPrecondition says why there are none.
absl::StatusOr<std::map<std::string, std::string>> TokenizerFiles(const ServedModel& model);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_TOKENIZER_ARCHIVE_H_
