// The programs as subprocesses: hydrantd with a tiny model of the repository on a free port, and
// hydrant. HYDRANTD_PATH and HYDRANT_PATH name them.
#ifndef HYDRANT_TESTS_SERVER_DAEMON_PROCESS_H_
#define HYDRANT_TESTS_SERVER_DAEMON_PROCESS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "hydrant/v1/hydrant.grpc.pb.h"
#include "tests/subprocess.h"

namespace hydrant {

inline constexpr char kModel[] = "tests/data/engine/tiny_mha";
inline constexpr char kGguf[] = "models/hydrant-tiny.gguf";

struct Limits {
  int open_files = 0;       // 0: the test's own limit
  int soft_open_files = 0;  // 0: as open_files
};

// A command prefix that sets the limits.
inline std::vector<std::string> LimitedBy(const Limits& limits) {
  if (limits.open_files == 0) return {};
  const int soft = limits.soft_open_files == 0 ? limits.open_files : limits.soft_open_files;
  const std::string script =
      "ulimit -Sn " + std::to_string(soft) + " && ulimit -Hn " + std::to_string(limits.open_files);
  return {"/bin/sh", "-c", script + " && exec \"$@\"", "sh"};
}

class Daemon {
 public:
  explicit Daemon(const std::vector<std::string>& flags = {}, const std::string& model = kModel,
                  const std::string& device = "reference", const Limits& limits = {})
      : process_([&] {
          std::vector<std::string> arguments = LimitedBy(limits);
          const std::vector<std::string> own = {HYDRANTD_PATH, "--model",     model,
                                                "--listen",    "127.0.0.1:0", "--device",
                                                device,        "--threads",   "1"};
          arguments.insert(arguments.end(), own.begin(), own.end());
          arguments.insert(arguments.end(), flags.begin(), flags.end());
          return arguments;
        }()) {
    const std::string line = process_.WaitForErrorLine("ready after");
    const size_t at = line.find("127.0.0.1:");
    if (at != std::string::npos) address_ = line.substr(at, line.find_first_of("\"", at) - at);
    channel_ = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
    stub_ = v1::Hydrant::NewStub(channel_);
  }

  const std::string& address() const { return address_; }
  explicit Daemon(const Limits& limits, const std::vector<std::string>& flags = {})
      : Daemon(flags, kModel, "reference", limits) {}
  // With --metrics-listen.
  std::string MetricsAddress() {
    const std::string line = process_.WaitForErrorLine("metrics and probes on http://");
    return line.substr(line.find("http://") + std::string("http://").size());
  }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  v1::Hydrant::Stub& stub() { return *stub_; }
  Subprocess& process() { return process_; }

 private:
  Subprocess process_;
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Hydrant::Stub> stub_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_DAEMON_PROCESS_H_
