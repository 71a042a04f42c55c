// hydrantd: reads the command line, sets up the log, runs the daemon. Exit code 1 with one line on
// stderr where it cannot.
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/async.h>
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
#include <string_view>
#include <system_error>

#include "server/daemon.h"
#include "server/daemon_options.h"
#include "server/descriptor_limit.h"
#include "server/idle_trim.h"
#include "server/json_log.h"

namespace {

constexpr size_t kLogQueueLines = 8192;

// Lines are written by a thread of their own, and the oldest are dropped where stderr does not take
// them: a stuck terminal must not stop a stream.
void SetUpLog(const hydrant::DaemonOptions& options) {
  spdlog::init_thread_pool(kLogQueueLines, 1);
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  const auto logger_of = [&](const std::string& name) {
    auto logger = std::make_shared<spdlog::async_logger>(
        name, sink, spdlog::thread_pool(), spdlog::async_overflow_policy::overrun_oldest);
    logger->set_level(spdlog::level::from_str(options.log_level));
    return logger;
  };
  spdlog::set_default_logger(logger_of("hydrantd"));
  if (options.log_json) {
    sink->set_formatter(hydrant::NewJsonFormatter());
    spdlog::register_logger(logger_of(hydrant::kFieldsLogger));
  } else {
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  }
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

// The last resort, where memory or threads run out in a library, or in a table too small to have a
// check of its own: one line instead of a core dump.
[[noreturn]] void OnUncaught() {
  try {
    if (const std::exception_ptr exception = std::current_exception()) {
      std::rethrow_exception(exception);
    }
    std::fputs("hydrantd: ended by std::terminate\n", stderr);
  } catch (const std::bad_alloc&) {
    std::fputs(
        "hydrantd: out of memory: lower --kv-cache-memory-bytes, --max-num-seqs or "
        "--max-model-len, or raise the limit of the process (ulimit -v)\n",
        stderr);
  } catch (const std::system_error& error) {
    std::fprintf(stderr,
                 "hydrantd: the system refuses a thread or the like: %s; raise the limits of the "
                 "process (ulimit -v, ulimit -u)\n",
                 error.what());
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "hydrantd: %s\n", exception.what());
  } catch (...) {
    std::fputs("hydrantd: ended by an unknown exception\n", stderr);
  }
  std::_Exit(EXIT_FAILURE);
}

// gRPC aborts where it gets no memory or no thread, and says why to its own log alone. The daemon
// takes this off again when it serves: from then on an abort leaves a core dump.
void OnAbortAtStart(int) {
  constexpr std::string_view kLine =
      "hydrantd: a library gave up at the start, most likely for want of memory or threads: raise "
      "the limits of the process (ulimit -v, ulimit -u)\n";
  (void)!write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(EXIT_FAILURE);
}

}  // namespace

int main(int argc, char** argv) {
  hydrant::LimitHeaps();
  std::set_terminate(OnUncaught);
  std::signal(SIGABRT, OnAbortAtStart);
  hydrant::BlockSignals();
  const hydrant::CommandLine line = hydrant::ParseCommandLine(argc, argv);
  if (!line.options.has_value()) {
    std::fputs(line.text.c_str(), line.exit_code == 0 ? stdout : stderr);
    return line.exit_code;
  }
  SetUpLog(*line.options);
  RouteLibraryLogs();
  hydrant::RaiseDescriptorLimit();
  const absl::Status status = hydrant::RunDaemon(*line.options);
  const std::string why(status.message());
  if (!status.ok() && line.options->log_json) spdlog::critical("hydrantd: {}", why);
  spdlog::shutdown();
  if (!status.ok() && !line.options->log_json) std::fprintf(stderr, "hydrantd: %s\n", why.c_str());
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
