#include "scheduler/store/directory_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/mutex.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr std::string_view kSuffix = ".context";
constexpr std::string_view kTemporary = ".saving-";
// Temporary files older than this are leftovers of a crash, not of a running writer.
constexpr int64_t kForgottenAfterS = 3600;
// Bytes between two checks of the deadline.
constexpr size_t kBytesAtOnce = size_t{8} << 20;
// Opening a pipe that has a key's file name must not block.
constexpr int kReadFlags = O_RDONLY | O_NONBLOCK;

// Precedes the value: the expiry time, and the size to detect truncation.
struct Header {
  char magic[8] = {'H', 'Y', 'D', 'R', 'S', 'T', 'O', '1'};
  int64_t expires_at = std::numeric_limits<int64_t>::max();  // Unix time in seconds
  int64_t bytes = 0;

  bool HasOurMagic() const { return std::memcmp(magic, Header().magic, sizeof(magic)) == 0; }
};

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool HasPassed(StoreDeadline deadline) { return std::chrono::steady_clock::now() > deadline; }

absl::Status SystemError(const std::string& path, const char* what, int error) {
  const std::string message = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case ENXIO:  // a socket file
    case ELOOP:
      return absl::DataLossError(message);
    default:
      return absl::UnavailableError(message);
  }
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  bool IsRegular() const {
    struct stat status = {};
    return fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
  }

  // Errors are errno's; 0: none.
  int Write(const void* bytes, size_t size, StoreDeadline deadline) const {
    const char* at = static_cast<const char*>(bytes);
    while (size > 0) {
      if (HasPassed(deadline)) return ETIMEDOUT;
      const ssize_t written = write(fd_, at, std::min(size, kBytesAtOnce));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno;
      at += written;
      size -= static_cast<size_t>(written);
    }
    return 0;
  }
  // Returns the number of bytes read, fewer at the end of the file.
  std::optional<size_t> Read(void* bytes, size_t size, StoreDeadline deadline) const {
    char* at = static_cast<char*>(bytes);
    size_t done = 0;
    while (done < size) {
      if (HasPassed(deadline)) {
        errno = ETIMEDOUT;
        return std::nullopt;
      }
      const ssize_t read = ::read(fd_, at + done, std::min(size - done, kBytesAtOnce));
      if (read < 0 && errno == EINTR) continue;
      if (read < 0) return std::nullopt;
      if (read == 0) break;
      done += static_cast<size_t>(read);
    }
    return done;
  }
  int Sync() const { return fsync(fd_) == 0 ? 0 : errno; }

 private:
  const int fd_;
};

class DirectoryStore final : public ContextStore {
 public:
  DirectoryStore(std::string path, int64_t max_bytes)
      : path_(std::move(path)), max_bytes_(max_bytes) {}

  absl::Status Open() {
    if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST)
      return SystemError(path_, "make the folder", errno);
    const std::string probe = TemporaryPath();
    {
      const File file(probe, O_WRONLY | O_CREAT | O_EXCL);
      if (!file.is_open()) return SystemError(path_, "write into", errno);
    }
    unlink(probe.c_str());
    ForgetOld();
    return absl::OkStatus();
  }

  absl::Status Put(std::string_view key, std::string_view value, std::optional<int64_t> ttl_seconds,
                   StoreDeadline deadline) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    Header header;
    header.bytes = static_cast<int64_t>(value.size());
    if (ttl_seconds.has_value()) header.expires_at = UnixNow() + *ttl_seconds;
    const auto all = static_cast<int64_t>(sizeof(header) + value.size());
    if (max_bytes_ > 0 && all > max_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(Description(), " may hold ", max_bytes_, " bytes, the value has ", all));
    }
    const std::string temporary = TemporaryPath();
    absl::Status status = Write(temporary, header, value, deadline);
    // The caller has given up, and another call may have deleted the key since.
    if (status.ok() && HasPassed(deadline)) status = DeadlineError(Description());
    if (status.ok() && rename(temporary.c_str(), PathOf(key).c_str()) != 0)
      status = SystemError(PathOf(key), "write", errno);
    if (!status.ok()) {
      unlink(temporary.c_str());
      return status;
    }
    const File folder(path_, O_RDONLY | O_DIRECTORY);
    if (const int error = folder.is_open() ? folder.Sync() : errno; error != 0)
      return SystemError(path_, "write", error);
    if (max_bytes_ > 0) MakeRoom(PathOf(key), deadline);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(std::string_view key, size_t max_bytes,
                                  StoreDeadline deadline) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    const std::string path = PathOf(key);
    const File file(path, kReadFlags);
    HYDRANT_ASSIGN_OR_RETURN(const Header header, LiveHeader(path, file, deadline));
    if (std::cmp_greater(header.bytes, max_bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " has ", header.bytes, " bytes, and there is room for ", max_bytes));
    }
    std::string value(header.bytes, '\0');
    const std::optional<size_t> read = file.Read(value.data(), value.size(), deadline);
    if (!read.has_value()) return SystemError(path, "read", errno);
    if (*read < value.size()) return Damaged(path);
    // Updates the time of last use in the file system, for all processes that share the folder.
    futimens(file.fd(), nullptr);
    return value;
  }

  absl::StatusOr<int64_t> SizeOf(std::string_view key, StoreDeadline deadline) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    const std::string path = PathOf(key);
    const File file(path, kReadFlags);
    HYDRANT_ASSIGN_OR_RETURN(const Header header, LiveHeader(path, file, deadline));
    return header.bytes;
  }

  absl::StatusOr<bool> Delete(std::string_view key, StoreDeadline /*deadline*/) override {
    HYDRANT_RETURN_IF_ERROR(CheckStoreKey(key));
    const std::string path = PathOf(key);
    if (unlink(path.c_str()) == 0) return true;
    if (errno == ENOENT) return false;
    return SystemError(path, "delete", errno);
  }

  absl::StatusOr<std::vector<StoredKey>> List(std::string_view prefix,
                                              StoreDeadline deadline) override {
    std::vector<StoredKey> keys;
    HYDRANT_ASSIGN_OR_RETURN(const std::vector<Stored> files, Files(prefix, deadline));
    for (const Stored& stored : files) {
      if (HasPassed(deadline)) return DeadlineError(Description());
      if (keys.size() == kMaxListedKeys) return TooManyKeys(Description());
      const std::string path = absl::StrCat(path_, "/", stored.name);
      const File file(path, kReadFlags);
      // The file was deleted meanwhile, or is damaged.
      const absl::StatusOr<Header> header = LiveHeader(path, file, deadline);
      if (!header.ok()) continue;
      keys.push_back({stored.name.substr(0, stored.name.size() - kSuffix.size()), header->bytes});
    }
    std::sort(keys.begin(), keys.end(),
              [](const StoredKey& a, const StoredKey& b) { return a.key < b.key; });
    return keys;
  }

  std::string Description() const override { return absl::StrCat("the folder ", path_); }

 private:
  struct Stored {
    std::string name;
    int64_t bytes = 0;
    timespec used = {};
  };

  std::string PathOf(std::string_view key) const {
    return absl::StrCat(path_, "/", std::string(key), std::string(kSuffix));
  }
  // Unique: a process in another container that shares the folder may have the same process id.
  std::string TemporaryPath() {
    return absl::StrCat(path_, "/", std::string(kTemporary), writer_, "-", num_written_++);
  }

  static absl::Status Damaged(const std::string& path) {
    return absl::DataLossError(absl::StrCat(path,
                                            " is damaged: it is shorter than it says, or no "
                                            "file of ours; delete it"));
  }

  static absl::Status Write(const std::string& path, const Header& header, std::string_view value,
                            StoreDeadline deadline) {
    const File file(path, O_WRONLY | O_CREAT | O_EXCL);
    if (!file.is_open()) return SystemError(path, "write", errno);
    int error = file.Write(&header, sizeof(header), deadline);
    if (error == 0) error = file.Write(value.data(), value.size(), deadline);
    if (error == 0) error = file.Sync();
    return error == 0 ? absl::OkStatus() : SystemError(path, "write", error);
  }

  // The header of a file that has not expired; NOT_FOUND: it is expired or missing.
  static absl::StatusOr<Header> LiveHeader(const std::string& path, const File& file,
                                           StoreDeadline deadline) {
    if (!file.is_open()) return SystemError(path, "read", errno);
    if (!file.IsRegular()) {
      return absl::DataLossError(
          absl::StrCat(path, " is damaged: it is a pipe, a device or a folder; delete it"));
    }
    HYDRANT_ASSIGN_OR_RETURN(const Header header, ReadHeader(path, file, deadline));
    if (HasExpired(path, header)) return absl::NotFoundError(absl::StrCat(path, " has expired"));
    return header;
  }

  static absl::StatusOr<Header> ReadHeader(const std::string& path, const File& file,
                                           StoreDeadline deadline) {
    Header header;
    struct stat status = {};
    const std::optional<size_t> read = file.Read(&header, sizeof(header), deadline);
    if (!read.has_value() || fstat(file.fd(), &status) != 0)
      return SystemError(path, "read", errno);
    const bool whole = *read == sizeof(header) && header.HasOurMagic() &&
                       status.st_size - static_cast<int64_t>(sizeof(header)) == header.bytes;
    return whole ? absl::StatusOr<Header>(header) : Damaged(path);
  }

  // Deletes the file if it has expired.
  static bool HasExpired(const std::string& path, const Header& header) {
    if (UnixNow() < header.expires_at) return false;
    unlink(path.c_str());
    return true;
  }

  absl::StatusOr<std::vector<Stored>> Files(std::string_view prefix, StoreDeadline deadline) const {
    std::vector<Stored> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
      if (HasPassed(deadline)) return DeadlineError(Description());
      Stored stored = {.name = entry.path().filename().string()};
      if (stored.name.starts_with(".") || !stored.name.ends_with(kSuffix)) continue;
      if (!std::string_view(stored.name)
               .substr(0, stored.name.size() - kSuffix.size())
               .starts_with(prefix))
        continue;
      struct stat status = {};
      if (stat(entry.path().c_str(), &status) != 0) continue;
      stored.bytes = status.st_size;
      stored.used = status.st_mtim;
      files.push_back(std::move(stored));
    }
    return files;
  }

  // Evicts the least recently used files until the rest fits, but not `newest`.
  void MakeRoom(const std::string& newest, StoreDeadline deadline) {
    const MutexLock lock(mutex_);
    absl::StatusOr<std::vector<Stored>> listed = Files("", deadline);
    if (!listed.ok()) return;  // the next Put() tries again
    std::vector<Stored>& files = *listed;
    int64_t bytes = 0;
    for (const Stored& stored : files) bytes += stored.bytes;
    std::sort(files.begin(), files.end(), [](const Stored& a, const Stored& b) {
      return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
    });
    for (const Stored& stored : files) {
      if (bytes <= max_bytes_) return;
      const std::string path = absl::StrCat(path_, "/", stored.name);
      if (path == newest) continue;
      if (unlink(path.c_str()) == 0 || errno == ENOENT) bytes -= stored.bytes;
    }
  }

  // Removes temporary files of killed processes.
  void ForgetOld() const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
      struct stat status = {};
      if (!entry.path().filename().string().starts_with(kTemporary)) continue;
      if (stat(entry.path().c_str(), &status) == 0 &&
          status.st_mtim.tv_sec + kForgottenAfterS < UnixNow())
        unlink(entry.path().c_str());
    }
  }

  const std::string path_;
  const int64_t max_bytes_;
  const uint64_t writer_ = std::random_device()() | uint64_t{std::random_device()()} << 32;
  std::atomic<uint64_t> num_written_{0};
  Mutex mutex_;  // one MakeRoom() at a time
};

}  // namespace

absl::StatusOr<std::unique_ptr<ContextStore>> OpenDirectoryStore(const std::string& path,
                                                                 int64_t max_bytes) {
  auto store = std::make_unique<DirectoryStore>(path, max_bytes);
  HYDRANT_RETURN_IF_ERROR(store->Open());
  return store;
}

}  // namespace hydrant
