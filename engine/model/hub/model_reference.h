// A reference to a model of the Hugging Face hub: ORG/NAME[@REVISION][:FILE]. Plain data and its
// parser; stateless.
#ifndef HYDRANT_ENGINE_MODEL_HUB_MODEL_REFERENCE_H_
#define HYDRANT_ENGINE_MODEL_HUB_MODEL_REFERENCE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hydrant::hub {

// Distinguishes a reference from a path.
inline constexpr std::string_view kHubPrefix = "hf:";

struct ModelReference {
  std::string repo;               // "ORG/NAME", or the bare "NAME" of some old models
  std::string revision = "main";  // a branch, a tag or a commit
  std::string file;  // a file, or the end of its name ("Q4_K_M"); "": all that serving needs
};

bool IsHubModel(std::string_view path);  // begins with kHubPrefix

// With or without the prefix. InvalidArgument names the invalid part and the hub's rule: at most 96
// characters of [A-Za-z0-9._-] for ORG and for NAME, neither "--" nor "..", no "-" or "." at an
// end, no ".git".
absl::StatusOr<ModelReference> ParseModelReference(std::string_view text);

// The text form, without the prefix and without the revision "main".
std::string ToText(const ModelReference& reference);

// 40 lower-case hexadecimal digits. The files of a commit never change; a branch moves.
bool IsCommit(std::string_view revision);

// Whether `name` has `digits` digits of lower-case hexadecimal.
bool IsHex(std::string_view name, size_t digits);

// InvalidArgument unless `name`, which may come from a server, is a relative path that stays inside
// its folder: parts between '/' that are neither empty nor "." nor "..", no backslash, no control
// character, at most 255 bytes a part and 1024 in all. `what` begins the message.
absl::Status CheckRelativeName(std::string_view what, std::string_view name);

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_MODEL_REFERENCE_H_
