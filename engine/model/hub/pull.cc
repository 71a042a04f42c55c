#include "engine/model/hub/pull.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/model/hub/blob_part.h"
#include "engine/model/hub/byte_text.h"
#include "engine/model/hub/file_choice.h"
#include "engine/model/hub/hub_cache.h"
#include "engine/model/hub/hub_client.h"
#include "engine/model/hub/repo_listing.h"
#include "engine/model/small_file.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant::hub {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxPages = 200;
constexpr size_t kMaxInfoBytes = 16u << 20;

// The query of `<URL?QUERY>; rel="next"`; "" if there is no next page. Only the query is used: a
// mirror may return links to its upstream.
std::string NextQuery(const std::string& link) {
  const size_t rel = link.find("rel=\"next\"");
  if (rel == std::string::npos) return "";
  const size_t end = link.rfind('>', rel);
  const size_t begin = end == std::string::npos ? end : link.rfind('<', end);
  if (begin == std::string::npos) return "";
  const std::string url = link.substr(begin + 1, end - begin - 1);
  const size_t question = url.find('?');
  return question == std::string::npos ? "" : url.substr(question);
}

std::string PathOf(const HubCache& cache, const std::string& commit, const FileChoice& choice) {
  const std::string folder = cache.SnapshotFolder(commit);
  return choice.served.empty() ? folder : folder + "/" + choice.served;
}

// One pull of one model.
class Puller {
 public:
  Puller(const ModelReference& reference, const HubSettings& settings, PullListener* listener)
      : reference_(reference), listener_(listener), cache_(settings.cache, reference.repo) {}

  absl::StatusOr<PulledModel> Run(HubClient* client) {
    client_ = client;
    HYDRANT_ASSIGN_OR_RETURN(commit_, AskForCommit());
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<RepoFile> listing, Listing());
    absl::StatusOr<FileChoice> choice = ChooseFiles(listing, reference_.file);
    if (!choice.ok()) return WithContext(choice.status(), ToText(reference_));
    if (!choice->note.empty()) listener_->OnNote(choice->note);
    HYDRANT_RETURN_IF_ERROR(Plan(choice->files));
    HYDRANT_RETURN_IF_ERROR(cache_.Prepare(commit_));
    for (const RepoFile& file : choice->files) HYDRANT_RETURN_IF_ERROR(Fetch(file));
    // Written last, so that a branch never points to a commit that is less complete than the
    // previous one. Existing files are not rewritten: the cache may be read-only.
    if (!listing_was_kept_) HYDRANT_RETURN_IF_ERROR(cache_.WriteTree(commit_, listing));
    HYDRANT_RETURN_IF_ERROR(cache_.WriteRef(reference_.revision, commit_));
    return PulledModel{.path = PathOf(cache_, commit_, *choice), .commit = commit_};
  }

 private:
  absl::Status NoHub(const absl::Status& status) const {
    return WithContext(
        status, fmt::format("{} does not answer as a hub does", client_->settings().endpoint));
  }

  std::string ApiPath(const char* what, const std::string& revision) const {
    return fmt::format("/api/models/{}/{}/{}", reference_.repo, what,
                       UrlEncoded(revision, /*keep_slashes=*/false));
  }

  absl::StatusOr<std::string> AskForCommit() {
    HYDRANT_ASSIGN_OR_RETURN(
        const std::string text,
        client_->GetText(ApiPath("revision", reference_.revision), kMaxInfoBytes));
    absl::StatusOr<std::string> commit = ParseCommit(text);
    if (!commit.ok()) return NoHub(commit.status());
    return commit;
  }

  // A commit never changes, so its listing is fetched once.
  absl::StatusOr<std::vector<RepoFile>> Listing() {
    absl::StatusOr<std::vector<RepoFile>> kept = cache_.ReadTree(commit_);
    listing_was_kept_ = kept.ok();
    if (kept.ok()) return kept;
    const std::string path = ApiPath("tree", commit_);
    std::vector<RepoFile> files;
    std::string query = "?recursive=true";
    for (int page = 0; !query.empty(); ++page) {
      if (page == kMaxPages)
        return NoHub(absl::InvalidArgumentError(
            fmt::format("its list of files has more than {} pages", kMaxPages)));
      std::string link;
      HYDRANT_ASSIGN_OR_RETURN(const std::string text,
                               client_->GetText(path + query, kMaxListingBytes, &link));
      if (const absl::Status added = AppendTreePage(text, &files); !added.ok()) return NoHub(added);
      query = NextQuery(link);
    }
    return files;
  }

  absl::Status Plan(const std::vector<RepoFile>& files) {
    PullPlan plan{.commit = commit_, .num_files = files.size()};
    for (const RepoFile& file : files) {
      plan.total_bytes += file.size;
      plan.present_bytes += cache_.HasBlob(file) ? file.size : cache_.PartBytes(file);
    }
    listener_->OnPlan(plan);
    return CheckDiskSpace(plan.total_bytes - plan.present_bytes);
  }

  absl::Status CheckDiskSpace(int64_t wanted) const {
    fs::path folder = cache_.folder();
    std::error_code error;
    while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
    struct statvfs disk {};
    if (statvfs(folder.c_str(), &disk) != 0) return absl::OkStatus();  // writing will fail
    const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
    if (wanted <= free) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        fmt::format("{} to fetch, but {} has {} free; HF_HOME names another folder",
                    ByteText(wanted), folder.string(), ByteText(free)));
  }

  absl::Status Fetch(const RepoFile& file) {
    if (!cache_.HasBlob(file)) HYDRANT_RETURN_IF_ERROR(FetchBlob(file));
    done_bytes_ += file.size;
    Report(file, done_bytes_);
    return cache_.Link(commit_, file);
  }

  absl::Status FetchBlob(const RepoFile& file) {
    bool said = false;
    const auto on_wait = [&] {
      if (!std::exchange(said, true))
        listener_->OnNote(fmt::format("{}: another process is fetching it", Quoted(file.name)));
      return CheckCancelled();
    };
    HYDRANT_ASSIGN_OR_RETURN(const FileLock lock, cache_.Lock(file.BlobName(), on_wait));
    if (cache_.HasBlob(file)) return absl::OkStatus();  // another process fetched it meanwhile
    const auto on_bytes = [&](int64_t bytes) {
      Report(file, done_bytes_ + bytes);
      return CheckCancelled();
    };
    HYDRANT_ASSIGN_OR_RETURN(const std::unique_ptr<BlobPart> part,
                             BlobPart::Open(cache_.PartPath(file.BlobName()), file, on_bytes));
    if (!part->IsWhole()) {
      const std::string path = fmt::format("/{}/resolve/{}/{}", reference_.repo, commit_,
                                           UrlEncoded(file.name, /*keep_slashes=*/true));
      if (absl::StatusOr<HttpHead> head = client_->Get(path, part.get()); !head.ok())
        return head.status();
    }
    return part->FinishAs(cache_.BlobPath(file.BlobName()));
  }

  // Reports once if the last byte and the end of a file give the same number.
  void Report(const RepoFile& file, int64_t bytes) {
    if (std::exchange(reported_bytes_, bytes) != bytes) listener_->OnProgress(file.name, bytes);
  }

  absl::Status CheckCancelled() const {
    return listener_->Cancelled() ? absl::CancelledError("interrupted") : absl::OkStatus();
  }

  const ModelReference& reference_;
  PullListener* const listener_;
  const HubCache cache_;
  HubClient* client_ = nullptr;
  std::string commit_;
  bool listing_was_kept_ = false;
  int64_t done_bytes_ = 0;  // of complete files
  int64_t reported_bytes_ = -1;
};

std::string TextOfFile(const std::string& path) {
  return ReadSmallFile(path, kMaxListingBytes).value_or("");
}

// From the commit's stored listing, else from the references between the files.
absl::StatusOr<FileChoice> ChooseInCache(const HubCache& cache, const std::string& commit,
                                         const std::string& wanted) {
  const std::vector<RepoFile> present = cache.FilesOf(commit);
  if (const auto listing = cache.ReadTree(commit); listing.ok()) {
    HYDRANT_ASSIGN_OR_RETURN(FileChoice choice, ChooseFiles(*listing, wanted));
    std::map<std::string, int64_t> sizes;
    for (const RepoFile& file : present) sizes[file.name] = file.size;
    for (const RepoFile& file : choice.files) {
      const auto found = sizes.find(file.name);
      if (found == sizes.end() || found->second != file.size)
        return absl::NotFoundError(fmt::format("{} is missing", Quoted(file.name)));
    }
    return choice;
  }
  HYDRANT_ASSIGN_OR_RETURN(FileChoice choice, ChooseFiles(present, wanted));
  HYDRANT_RETURN_IF_ERROR(CheckNothingMissing(
      choice, TextOfFile(cache.SnapshotFolder(commit) + "/model.safetensors.index.json")));
  return choice;
}

absl::Status NotInCache(const ModelReference& reference, const std::string& why) {
  return absl::NotFoundError(fmt::format("{} is not in the cache ({})", ToText(reference), why));
}

// Adds advice for machines that cannot reach the hub.
absl::Status WithoutHub(const absl::Status& status, const HubCache& cache) {
  return {
      status.code(),
      fmt::format("{}; copy {} from a machine that has it, name a mirror by HF_ENDPOINT, or give "
                  "the path of a folder or GGUF file",
                  std::string(status.message()), cache.folder())};
}

}  // namespace

absl::StatusOr<PulledModel> FindInCache(const ModelReference& reference,
                                        const HubSettings& settings) {
  const HubCache cache(settings.cache, reference.repo);
  const std::optional<std::string> commit = cache.CommitOf(reference.revision);
  if (!commit.has_value()) {
    return NotInCache(reference,
                      fmt::format("revision {} was not pulled", Quoted(reference.revision)));
  }
  const absl::StatusOr<FileChoice> choice = ChooseInCache(cache, *commit, reference.file);
  if (!choice.ok()) return NotInCache(reference, std::string(choice.status().message()));
  return PulledModel{.path = PathOf(cache, *commit, *choice), .commit = *commit};
}

absl::StatusOr<PulledModel> Pull(const ModelReference& reference, const HubSettings& settings,
                                 PullListener* listener,
                                 std::function<void(std::chrono::seconds)> wait) {
  const HubCache cache(settings.cache, reference.repo);
  if (settings.offline) {
    absl::StatusOr<PulledModel> found = FindInCache(reference, settings);
    if (!found.ok()) return WithoutHub(WithContext(found.status(), "HF_HUB_OFFLINE is set"), cache);
    return found;
  }
  HYDRANT_ASSIGN_OR_RETURN(
      const std::unique_ptr<HubClient> client,
      HubClient::Create({.settings = settings,
                         .reference = reference,
                         .cancelled = [listener] { return listener->Cancelled(); },
                         .note = [listener](const std::string& line) { listener->OnNote(line); },
                         .wait = std::move(wait)}));
  absl::StatusOr<PulledModel> pulled = Puller(reference, settings, listener).Run(client.get());
  if (absl::IsUnavailable(pulled.status())) return WithoutHub(pulled.status(), cache);
  return pulled;
}

absl::StatusOr<std::string> ResolveModelPath(const std::string& path, PullListener* listener) {
  if (!IsHubModel(path)) return path;
  HYDRANT_ASSIGN_OR_RETURN(const ModelReference reference, ParseModelReference(path));
  HYDRANT_ASSIGN_OR_RETURN(const HubSettings settings, ReadHubSettings());
  if (absl::StatusOr<PulledModel> found = FindInCache(reference, settings); found.ok())
    return std::move(found->path);
  HYDRANT_ASSIGN_OR_RETURN(PulledModel pulled, Pull(reference, settings, listener));
  return std::move(pulled.path);
}

}  // namespace hydrant::hub
