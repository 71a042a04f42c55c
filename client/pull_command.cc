#include "client/pull_command.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "engine/model/hub/byte_text.h"
#include "engine/model/hub/hub_settings.h"
#include "engine/model/hub/model_reference.h"
#include "engine/model/hub/pull.h"
#include "kernels/standard_streams.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kExitInterrupted = 130;
constexpr std::chrono::milliseconds kTerminalInterval{200};
constexpr std::chrono::seconds kLineInterval{10};

volatile std::sig_atomic_t interrupted = 0;

// The first Ctrl-C stops the pull cleanly, a second one ends the process.
void OnInterrupt(int) { interrupted = 1; }

void EndOrderlyOnInterrupt() {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

size_t Columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A line that is overwritten on a terminal; elsewhere a line at intervals.
class ProgressPrinter final : public hub::PullListener {
 public:
  explicit ProgressPrinter(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

  void OnPlan(const hub::PullPlan& plan) override {
    Print(fmt::format("{} files, {}, {} of it there; commit {}", plan.num_files,
                      hub::ByteText(plan.total_bytes), hub::ByteText(plan.present_bytes),
                      plan.commit));
    meter_.emplace(plan.total_bytes, plan.present_bytes, Clock::now());
    shown_ = Clock::now();
    total_bytes_ = plan.total_bytes;
  }

  void OnProgress(const std::string& file, int64_t bytes) override {
    if (quiet_ || !meter_.has_value()) return;
    const Clock::time_point now = Clock::now();
    meter_->Update(bytes, now);
    const Clock::duration interval = terminal_ ? Clock::duration(kTerminalInterval) : kLineInterval;
    if (bytes < total_bytes_ && now - shown_ < interval) return;
    shown_ = now;
    std::string line = fmt::format("{}: {}", meter_->Text(), file);
    // a wrapped line could not be overwritten
    if (terminal_) line.resize(std::min(line.size(), Columns() - 1));
    // Clears the rest of a longer previous line.
    PrintErr("{}", terminal_ ? "\r" + line + "\033[K" : line + "\n");
    line_is_open_ = terminal_;
  }

  void OnNote(const std::string& line) override { Print(line); }
  bool Cancelled() override { return interrupted != 0; }

  void EndLine() {
    if (std::exchange(line_is_open_, false)) PrintErr("\n");
  }

 private:
  void Print(const std::string& line) {
    if (quiet_) return;
    EndLine();
    PrintErr("{}\n", line);
  }

  const bool quiet_, terminal_;
  bool line_is_open_ = false;
  std::optional<hub::TransferMeter> meter_;
  Clock::time_point shown_;
  int64_t total_bytes_ = 0;
};

int ExitCodeOf(const absl::Status& status) {
  if (absl::IsCancelled(status)) return kExitInterrupted;
  if (absl::IsInvalidArgument(status)) return 2;
  return absl::IsUnavailable(status) ? 3 : 1;
}

int Report(const absl::Status& status) {
  const bool stopped = absl::IsCancelled(status);
  PrintErr("hydrant: {}{}\n", std::string(status.message()),
           stopped ? "; the same command goes on where it was" : "");
  return ExitCodeOf(status);
}

}  // namespace

int PullModel(const std::string& model, bool json, bool quiet) {
  const auto reference = hub::ParseModelReference(model);
  if (!reference.ok()) return Report(reference.status());
  const auto settings = hub::ReadHubSettings();
  if (!settings.ok()) return Report(settings.status());
  EndOrderlyOnInterrupt();
  ProgressPrinter printer(quiet);
  const auto pulled = hub::Pull(*reference, *settings, &printer);
  printer.EndLine();
  if (!pulled.ok()) return Report(pulled.status());
  const std::string flag = std::string(hub::kHubPrefix) + hub::ToText(*reference);
  if (json) {
    const nlohmann::json object = {
        {"path", pulled->path}, {"commit", pulled->commit}, {"model", flag}};
    PrintOut("{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    PrintOut("{}\n", pulled->path);
  }
  if (!quiet) PrintErr("serve it: hydrantd --model {}\n", flag);
  return 0;
}

}  // namespace hydrant
