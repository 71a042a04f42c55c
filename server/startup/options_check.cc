#include "server/startup/options_check.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/model/hub/model_reference.h"
#include "server/auth/token_file.h"
#include "server/net/certificates.h"
#include "server/net/listening_sockets.h"

namespace hydrant {
namespace {

class Check {
 public:
  explicit Check(const DaemonOptions& options) : options_(options) {}

  std::vector<std::string> Run() {
    if (hub::IsHubModel(options_.model_path)) {
      RecordError("--model: ", hub::ParseModelReference(options_.model_path).status());
    } else {
      Readable("--model: ", options_.model_path);
    }
    Readable("--tokenizer: ", options_.tokenizer_path);
    Folder("--swap-directory: ", options_.engine.swap_directory);
    const SecurityOptions& security = options_.security;
    if (!security.tls.certificate.empty())
      RecordError("", ReadPem(security.tls, absl::Now()).status());
    if (!security.auth_tokens.empty())
      RecordError("--auth-tokens: ", ReadTokenFile(security.auth_tokens).status());
    if (!options_.traces.endpoint.empty()) Readable("--otlp-traces-ca: ", options_.traces.ca);
    Address("--listen: ", options_.listen);
    for (const DaemonOptions::ListenAs& more : options_.listen_as)
      Address("--listen-as: ", more.address);
    Address("--control-listen: ", security.control_listen);
    return std::move(problems_);
  }

 private:
  void RecordError(const std::string& flag, const absl::Status& status) {
    if (!status.ok()) problems_.push_back(absl::StrCat(flag, status.message()));
  }

  void Readable(const std::string& flag, const std::string& path) {
    if (path.empty() || access(path.c_str(), R_OK) == 0) return;
    problems_.push_back(absl::StrCat(flag, path, ": cannot be read: ", std::strerror(errno)));
  }

  void Folder(const std::string& flag, const std::string& path) {
    std::error_code unused;
    if (path.empty() || std::filesystem::is_directory(path, unused)) return;
    problems_.push_back(absl::StrCat(flag, path, ": is not a folder"));
  }

  // Binds a free port of the host, because a running daemon may still use its own.
  void Address(const std::string& flag, const std::string& listen) {
    const absl::StatusOr<HostPort> to = ParseHostPort(listen);
    if (!to.ok() || listen.starts_with("unix:")) return;  // checked before, or local only
    const std::string host = listen.substr(0, listen.find_last_of(':'));
    const absl::StatusOr<ListeningSockets> sockets = ListeningSockets::Open(host + ":0");
    if (!sockets.ok()) return RecordError(flag, sockets.status());
    const SecurityOptions& security = options_.security;
    if (!sockets->AreLocal() && security.tls.certificate.empty() && !security.insecure)
      problems_.push_back(absl::StrCat(
          flag, listen, ": other machines can connect there, so it wants --tls-certificate and ",
          "--tls-key, or --insecure where the network is trusted"));
  }

  const DaemonOptions& options_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> FindProblems(const DaemonOptions& options) { return Check(options).Run(); }

}  // namespace hydrant
