// hydrantd: reads the command line, sets up the log, runs the daemon. On failure exit code 1 with
// one line on stderr.
#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <system_error>

#include "kernels/final_line.h"
#include "server/net/descriptor_limit.h"
#include "server/observe/json_log.h"
#include "server/observe/log_queue.h"
#include "server/startup/daemon.h"
#include "server/startup/daemon_options.h"
#include "server/startup/malloc_trimmer.h"

namespace {

// Stderr may be a pipe that is not read, or a stuck terminal. The queue keeps it from blocking
// streams and the end of the process.
std::shared_ptr<hydrant::LogQueue> SetUpLog(const hydrant::DaemonOptions& options) {
  auto queue =
      std::make_shared<hydrant::LogQueue>(std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  const auto logger_of = [&](const std::string& name) {
    auto logger = std::make_shared<spdlog::logger>(name, queue);
    logger->set_level(spdlog::level::from_str(options.log_level));
    logger->set_error_handler([](const std::string&) {});  // the default writes to stderr directly
    return logger;
  };
  spdlog::set_default_logger(logger_of("hydrantd"));
  if (options.log_json) {
    queue->set_formatter(hydrant::NewJsonFormatter());
    spdlog::register_logger(logger_of(hydrant::kFieldsLogger));
  } else {
    queue->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  }
  return queue;
}

// Messages of gRPC and protobuf are logged at --log-level debug only: operators do not need them,
// and clients can provoke some (protobuf prints a line for text that is not UTF-8).
void RouteLibraryLogs() {
  gpr_set_log_function([](gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); });
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel, const char*, int, const std::string& message) {
        spdlog::debug("protobuf: {}", message);
      });
}

// Handles exceptions from libraries that run out of memory or threads, or from small allocations
// without a check: one line instead of a core dump.
[[noreturn]] void OnUncaught() {
  try {
    if (const std::exception_ptr exception = std::current_exception()) {
      std::rethrow_exception(exception);
    }
    hydrant::WriteFinalLine("hydrantd: ended by std::terminate\n");
  } catch (const std::bad_alloc&) {
    hydrant::WriteFinalLine(
        "hydrantd: out of memory: lower --kv-cache-memory-bytes, --max-num-seqs or "
        "--max-model-len, or raise the limit of the process (ulimit -v)\n");
  } catch (const std::system_error& error) {
    hydrant::WriteFinalLine(
        fmt::format("hydrantd: the system refuses a thread or the like: {}; raise the limits of "
                    "the process (ulimit -v, ulimit -u)\n",
                    error.what()));
  } catch (const std::exception& exception) {
    hydrant::WriteFinalLine(fmt::format("hydrantd: {}\n", exception.what()));
  } catch (...) {
    hydrant::WriteFinalLine("hydrantd: ended by an unknown exception\n");
  }
  std::_Exit(EXIT_FAILURE);
}

// gRPC aborts if it gets no memory or no thread, and gives the reason only in its own log. The
// daemon restores the default handler when it serves: from then on an abort leaves a core dump.
void OnAbortAtStart(int) {
  hydrant::WriteFinalLine(
      "hydrantd: a library gave up at the start, most likely for want of memory or threads: raise "
      "the limits of the process (ulimit -v, ulimit -u)\n");
  _exit(EXIT_FAILURE);
}

}  // namespace

int main(int argc, char** argv) {
  hydrant::LimitHeaps();
  std::set_terminate(OnUncaught);
  std::signal(SIGABRT, OnAbortAtStart);
  const hydrant::CommandLine line = hydrant::ParseCommandLine(argc, argv);
  if (!line.options.has_value()) {
    std::fputs(line.text.c_str(), line.exit_code == 0 ? stdout : stderr);
    return line.exit_code;
  }
  hydrant::BlockSignals();  // after printing: SIGTERM must end a blocked write
  const std::shared_ptr<hydrant::LogQueue> log = SetUpLog(*line.options);
  RouteLibraryLogs();
  hydrant::RaiseDescriptorLimit();
  const absl::Status status = hydrant::RunDaemon(*line.options);
  const int exit_code = status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
  const std::string why = fmt::format("hydrantd: {}", std::string(status.message()));
  if (!status.ok() && line.options->log_json) spdlog::critical(why);
  log->flush();
  if (!status.ok() && !line.options->log_json) hydrant::WriteFinalLine(why + "\n");
  if (!log->IsEmpty()) std::_Exit(exit_code);
  return exit_code;
}
