// The certificates that a server shows, and those that it trusts, from files that may be replaced
// while it runs: new connections get what is there now. A file that cannot be used is left aside,
// with a line in the log, and what was there before stays.
//
// Thread safe.
#ifndef HYDRANT_SERVER_NET_CERTIFICATES_H_
#define HYDRANT_SERVER_NET_CERTIFICATES_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace hydrant {

// All PEM. The flags of the same names say which.
struct TlsFiles {
  std::string certificate;  // the server's own, then those that lead to its CA
  std::string key;          // of the first; not encrypted
  std::string client_ca;    // whose certificates clients must show; "": they need none
};

// Their contents.
struct Pem {
  std::string certificate, key, client_ca;
  bool operator==(const Pem&) const = default;
};

// InvalidArgument names the flag, and why its file cannot be used: unreadable, no PEM, of another
// key, expired.
absl::StatusOr<Pem> ReadPem(const TlsFiles& files, absl::Time now);

class Certificates {
 public:
  static absl::StatusOr<std::shared_ptr<Certificates>> Load(const TlsFiles& files);

  bool WantsClientCertificates() const { return !files_.client_ca.empty(); }
  // What a new connection gets. The files are looked at again at most once a second.
  std::shared_ptr<const Pem> Current();
  // Looks at once. OK where what is there is in use now.
  absl::Status Reload();

 private:
  using Clock = std::chrono::steady_clock;
  Certificates(TlsFiles files, Pem pem);
  absl::Status Look();  // REQUIRES: mutex_ held

  const TlsFiles files_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<const Pem> pem_;
  Clock::time_point next_look_, next_complaint_{};
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_NET_CERTIFICATES_H_
