// hydrantd: reads the command line, sets up the log, runs the daemon. Exit code 1 with one line on
// stderr where it cannot.
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/async.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "server/daemon.h"
#include "server/daemon_options.h"

namespace {

constexpr size_t kLogQueueLines = 8192;

// Lines are written by a thread of their own, and the oldest are dropped where stderr does not take
// them: a stuck terminal must not stop a stream.
void SetUpLog(const std::string& level) {
  spdlog::init_thread_pool(kLogQueueLines, 1);
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  auto logger = std::make_shared<spdlog::async_logger>(
      "hydrantd", sink, spdlog::thread_pool(), spdlog::async_overflow_policy::overrun_oldest);
  logger->set_level(spdlog::level::from_str(level));
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  spdlog::set_default_logger(std::move(logger));
}

// What gRPC and protobuf say by themselves is nothing an operator needs, and some of it any client
// can provoke (protobuf prints a line for text that is no UTF-8): it is there for --log-level
// debug.
void RouteLibraryLogs() {
  gpr_set_log_function([](gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); });
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& message) {
        spdlog::debug("protobuf: {}", message);
      });
}

}  // namespace

int main(int argc, char** argv) {
  hydrant::BlockSignals();
  const hydrant::CommandLine line = hydrant::ParseCommandLine(argc, argv);
  if (!line.options.has_value()) {
    std::fputs(line.text.c_str(), line.exit_code == 0 ? stdout : stderr);
    return line.exit_code;
  }
  SetUpLog(line.options->log_level);
  RouteLibraryLogs();
  const absl::Status status = hydrant::RunDaemon(*line.options);
  spdlog::shutdown();
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "hydrantd: %s\n", std::string(status.message()).c_str());
  return EXIT_FAILURE;
}
