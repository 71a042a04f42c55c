// The server's certificate and the trusted CAs, from files that may be replaced at run time: new
// connections use the current files. If a file is invalid, a line is logged and the previous
// contents stay in use.
//
// Thread safe.
#ifndef HYDRANT_SERVER_NET_CERTIFICATES_H_
#define HYDRANT_SERVER_NET_CERTIFICATES_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/mutex.h"

namespace hydrant {

// PEM files, one per flag of the same name.
struct TlsFiles {
  std::string certificate;  // the server's certificate, then its chain to the CA
  std::string key;          // of the server's certificate; not encrypted
  std::string client_ca;    // CAs of client certificates; "": no client certificate is required
};

// Contents of the files.
struct Pem {
  std::string certificate, key, client_ca;
  bool operator==(const Pem&) const = default;
};

// InvalidArgument names the flag and the problem of its file: unreadable, not PEM, key of another
// certificate, expired.
absl::StatusOr<Pem> ReadPem(const TlsFiles& files, absl::Time now);

class Certificates {
 public:
  static absl::StatusOr<std::shared_ptr<Certificates>> Load(const TlsFiles& files);

  bool WantsClientCertificates() const { return !files_.client_ca.empty(); }
  // The contents for a new connection. The files are checked at most once a second.
  std::shared_ptr<const Pem> Current();
  // Checks the files now. OK if their contents are in use.
  absl::Status Reload();

 private:
  using Clock = std::chrono::steady_clock;
  Certificates(TlsFiles files, Pem pem);
  absl::Status Look() HYDRANT_REQUIRES(mutex_);

  const TlsFiles files_;
  Mutex mutex_;
  std::shared_ptr<const Pem> pem_ HYDRANT_GUARDED_BY(mutex_);
  Clock::time_point next_look_ HYDRANT_GUARDED_BY(mutex_);
  Clock::time_point next_log_ HYDRANT_GUARDED_BY(mutex_){};
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_CERTIFICATES_H_
