#include "engine/model/sigbus_handler.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/model/text.h"
#include "kernels/final_line.h"

namespace hydrant {
namespace {

// A list that only grows, so that the signal handler may walk it concurrently. Nodes outlive their
// maps; a process opens few files.
struct Guarded {
  std::atomic<const uint8_t*> begin;  // null: the map is gone
  const uint8_t* const end;
  const std::string line;
  Guarded* const next;
};
std::atomic<Guarded*> newest_guarded{nullptr};
// Held to change the list. A std::mutex, not a Mutex: the signal handler reads the list without it.
std::mutex writers;

// Async-signal-safe.
void OnBusError(int signal, siginfo_t* info, void*) {
  const auto* at = static_cast<const uint8_t*>(info->si_addr);
  for (const Guarded* map = newest_guarded; map != nullptr; map = map->next) {
    const uint8_t* begin = map->begin;
    if (info->si_code <= 0 || begin == nullptr || at < begin || at >= map->end) continue;
    WriteFinalLine(map->line);
    _exit(EXIT_FAILURE);
  }
  ::signal(signal, SIG_DFL);
  raise(signal);  // delivered on return
}

void InstallSigbusHandler() {
  struct sigaction action = {};
  if (sigaction(SIGBUS, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

void RegisterMapping(std::span<const uint8_t> bytes, std::string_view path) {
  static std::once_flag once;
  std::call_once(once, InstallSigbusHandler);
  const std::lock_guard lock(writers);
  newest_guarded = new Guarded{
      bytes.data(), bytes.data() + bytes.size(),
      absl::StrCat("model file ", Quoted(path),
                   " was cut short, or its disk failed, while it was in use: this process ends. "
                   "Replace model files by renaming, never in place\n"),
      newest_guarded};
}

void UnregisterMapping(std::span<const uint8_t> bytes) {
  const std::lock_guard lock(writers);
  for (Guarded* map = newest_guarded; map != nullptr; map = map->next) {
    if (map->begin == bytes.data()) map->begin = nullptr;
  }
}

}  // namespace hydrant
