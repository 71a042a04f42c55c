#include "engine/model/hub/hub_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "engine/model/hub/model_reference.h"
#include "engine/model/small_file.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLockInterval{200};

absl::Status FileError(const std::string& what, const std::string& path, std::error_code error) {
  const std::string message = fmt::format("{} {}: {}", what, Quoted(path), error.message());
  if (error == std::errc::no_space_on_device) return absl::ResourceExhaustedError(message);
  if (error == std::errc::permission_denied || error == std::errc::read_only_file_system)
    return absl::PermissionDeniedError(message + "; HF_HOME names another folder");
  return absl::FailedPreconditionError(message);
}

std::error_code LastError() { return {errno, std::generic_category()}; }

absl::Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? FileError("cannot make folder", folder.string(), error) : absl::OkStatus();
}

// A name beside `path` that is unique among processes.
std::string NameBeside(const std::string& path) {
  static std::atomic<unsigned> count{0};
  return fmt::format("{}.{}-{}.tmp", path, getpid(), count++);
}

absl::Status WriteWhole(const std::string& path, const std::string& text) {
  HYDRANT_RETURN_IF_ERROR(MakeFolder(fs::path(path).parent_path()));
  const std::string beside = NameBeside(path);
  std::error_code error;
  if (!(std::ofstream(beside, std::ios::binary) << text << std::flush)) {
    error = LastError();
    unlink(beside.c_str());
    return FileError("cannot write", path, error);
  }
  fs::rename(beside, path, error);
  return error ? FileError("cannot write", path, error) : absl::OkStatus();
}

// Writes CACHEDIR.TAG (https://bford.info/cachedir/), which excludes the folder from backups.
void TagCache(const std::string& folder) {
  constexpr char kTag[] = "Signature: 8a477f597d28d172789f06886806bc55\n";
  const std::string path = folder + "/CACHEDIR.TAG";
  std::error_code error;
  if (!fs::exists(path, error)) (void)WriteWhole(path, kTag);
}

std::optional<std::string> ReadSmall(const std::string& path, size_t max_bytes) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, max_bytes);
  return text.ok() ? std::optional(*std::move(text)) : std::nullopt;
}

bool IsWithoutLocks(int error) { return error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK; }

}  // namespace

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

HubCache::HubCache(const std::string& folder, const std::string& repo) : root_(folder) {
  const std::string name = "models--" + absl::StrReplaceAll(repo, {{"/", "--"}});
  folder_ = folder + "/" + name;
  locks_ = folder + "/.locks/" + name;
}

std::string HubCache::SnapshotFolder(const std::string& commit) const {
  return folder_ + "/snapshots/" + commit;
}
std::string HubCache::BlobPath(const std::string& blob) const { return folder_ + "/blobs/" + blob; }
std::string HubCache::PartPath(const std::string& blob) const {
  return BlobPath(blob) + ".incomplete";
}

std::optional<std::string> HubCache::CommitOf(const std::string& revision) const {
  constexpr size_t kMaxRefBytes = 256;
  if (IsCommit(revision)) return revision;
  std::optional<std::string> commit = ReadSmall(folder_ + "/refs/" + revision, kMaxRefBytes);
  if (!commit.has_value()) return std::nullopt;
  absl::StripAsciiWhitespace(&*commit);
  if (!IsCommit(*commit)) return std::nullopt;
  return commit;
}

absl::Status HubCache::WriteRef(const std::string& revision, const std::string& commit) const {
  if (revision == commit || CommitOf(revision) == commit) return absl::OkStatus();
  return WriteWhole(folder_ + "/refs/" + revision, commit);
}

absl::StatusOr<std::vector<RepoFile>> HubCache::ReadTree(const std::string& commit) const {
  const std::string path = fmt::format("{}/trees/{}.json", folder_, commit);
  const std::optional<std::string> text = ReadSmall(path, kMaxListingBytes);
  if (!text.has_value()) return absl::NotFoundError(path);
  return ParseTreeCache(*text);
}

absl::Status HubCache::WriteTree(const std::string& commit,
                                 const std::vector<RepoFile>& files) const {
  return WriteWhole(fmt::format("{}/trees/{}.json", folder_, commit), ToTreeCache(files));
}

bool HubCache::HasBlob(const RepoFile& file) const {
  std::error_code error;
  const uintmax_t size = fs::file_size(BlobPath(file.BlobName()), error);
  return !error && size == static_cast<uintmax_t>(file.size);
}

int64_t HubCache::PartBytes(const RepoFile& file) const {
  std::error_code error;
  const uintmax_t size = fs::file_size(PartPath(file.BlobName()), error);
  return error ? 0 : std::min(static_cast<int64_t>(size), file.size);
}

std::vector<RepoFile> HubCache::FilesOf(const std::string& commit) const {
  std::vector<RepoFile> files;
  const fs::path folder = SnapshotFolder(commit);
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code broken;
    if (!fs::is_regular_file(it->path(), broken) || files.size() == kMaxListedFiles) continue;
    const uintmax_t size = fs::file_size(it->path(), broken);
    if (broken) continue;
    RepoFile& file = files.emplace_back();
    file.name = it->path().lexically_relative(folder).generic_string();
    file.size = static_cast<int64_t>(size);
  }
  std::ranges::sort(files, {}, &RepoFile::name);
  return files;
}

absl::Status HubCache::Prepare(const std::string& commit) const {
  HYDRANT_RETURN_IF_ERROR(MakeFolder(folder_ + "/blobs"));
  HYDRANT_RETURN_IF_ERROR(MakeFolder(SnapshotFolder(commit)));
  HYDRANT_RETURN_IF_ERROR(MakeFolder(locks_));
  TagCache(root_);
  return absl::OkStatus();
}

absl::Status HubCache::Link(const std::string& commit, const RepoFile& file) const {
  const fs::path path = fs::path(SnapshotFolder(commit)) / file.name;
  const fs::path target =
      fs::path(BlobPath(file.BlobName())).lexically_relative(path.parent_path());
  std::error_code error;
  if (fs::read_symlink(path, error) == target) return absl::OkStatus();
  HYDRANT_RETURN_IF_ERROR(MakeFolder(path.parent_path()));
  const std::string beside = NameBeside(path.string());
  fs::create_symlink(target, beside, error);
  if (!error) fs::rename(beside, path, error);
  return error ? FileError("cannot link", path.string(), error) : absl::OkStatus();
}

absl::StatusOr<FileLock> HubCache::Lock(const std::string& blob,
                                        const std::function<absl::Status()>& on_wait) const {
  const std::string path = fmt::format("{}/{}.lock", locks_, blob);
  // Group-writable: users of a group may share the cache and its locks.
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
  if (descriptor < 0) return FileError("cannot open lock", path, LastError());
  FileLock lock(descriptor);
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (IsWithoutLocks(errno)) break;
    if (errno != EWOULDBLOCK && errno != EINTR) return FileError("cannot lock", path, LastError());
    HYDRANT_RETURN_IF_ERROR(on_wait());
    std::this_thread::sleep_for(kLockInterval);
  }
  return lock;
}

}  // namespace hydrant::hub
