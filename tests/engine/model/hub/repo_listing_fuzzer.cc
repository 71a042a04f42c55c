// The hub's responses and the cache's listings: arbitrary bytes give an error or a list with names
// that stay inside their folder.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "engine/model/hub/file_choice.h"
#include "engine/model/hub/model_reference.h"
#include "engine/model/hub/repo_listing.h"

namespace {

void Check(const std::vector<hydrant::hub::RepoFile>& files) {
  for (const hydrant::hub::RepoFile& file : files) {
    if (!hydrant::hub::CheckRelativeName("name", file.name).ok()) std::abort();
    if (file.size < 0 || file.BlobName().find('/') != std::string::npos) std::abort();
  }
  (void)hydrant::hub::ChooseFiles(files, "");
  (void)hydrant::hub::ChooseFiles(files, "Q8_0");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<hydrant::hub::RepoFile> files;
  if (hydrant::hub::AppendTreePage(text, &files).ok()) Check(files);
  if (const auto kept = hydrant::hub::ParseTreeCache(text); kept.ok()) Check(*kept);
  (void)hydrant::hub::ParseCommit(text);
  (void)hydrant::hub::ParseModelReference(text);
  return 0;
}
