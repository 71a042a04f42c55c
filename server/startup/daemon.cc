#include "server/startup/daemon.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "kernels/device_choice.h"
#include "kernels/status_macros.h"
#include "server/apis/control_service.h"
#include "server/apis/grpc_server.h"
#include "server/apis/metrics.h"
#include "server/apis/status_page.h"
#include "server/auth/call_authorizer.h"
#include "server/auth/tenants.h"
#include "server/net/certificates.h"
#include "server/net/descriptor_limit.h"
#include "server/net/port_probe.h"
#include "server/observe/health.h"
#include "server/observe/http_server.h"
#include "server/observe/queue_wait_monitor.h"
#include "server/observe/step_trace.h"
#include "server/observe/tracing.h"
#include "server/requests/event_router.h"
#include "server/requests/service.h"
#include "server/startup/exit_deadline.h"
#include "server/startup/machine_limits.h"
#include "server/startup/malloc_trimmer.h"
#include "server/startup/model_loader.h"
#include "server/startup/numa.h"
#include "server/startup/rounding_check.h"
#include "server/startup/systemd_notifier.h"
#include "server/startup/warm_up.h"
#include "server/wire/context_conversion.h"

namespace hydrant {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kHealthInterval{200};
constexpr milliseconds kDrainInterval{20};
constexpr milliseconds kMaxWriteWait{10};  // host backends compute on the cores that send
constexpr milliseconds kSaveGrace{2'000};  // for contexts not saved yet
constexpr milliseconds kUnsavedLogInterval{10'000};
constexpr milliseconds kLastMessagesGrace{2'000};  // for clients to receive written messages
constexpr milliseconds kLastSpansGrace{2'000};     // for a collector
// If the process still runs this long after --shutdown-timeout, it is ended even if threads still
// wait. More than kSaveGrace, kLastMessagesGrace and kLastSpansGrace together.
constexpr milliseconds kLastResort{10'000};
// time limit of a background save, in multiples of --context-store-timeout
constexpr int kSavesToAPatience = 3;

// Signals of the last row are ignored with a line in the log, so that a script for log rotation
// does not end streams. SIGQUIT still dumps core.
constexpr std::array kStopSignals{SIGTERM, SIGINT};
constexpr int kReloadSignal = SIGHUP;
constexpr std::array kIgnoredSignals{SIGUSR1, SIGUSR2};

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals) sigaddset(&set, signal);
  sigaddset(&set, kReloadSignal);
  for (const int signal : kIgnoredSignals) sigaddset(&set, signal);
  return set;
}

// Waits for a signal or a notification of another thread. Owns two descriptors.
class Wakeups {
 public:
  // `reload`: called on the waiting thread when a signal asks for it.
  explicit Wakeups(std::function<void()> reload) : reload_(std::move(reload)) {
    const sigset_t set = HandledSignals();
    signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
  ~Wakeups() {
    close(signal_fd_);
    close(event_fd_);
  }
  Wakeups(const Wakeups&) = delete;
  Wakeups& operator=(const Wakeups&) = delete;

  void Notify() {
    const uint64_t one = 1;
    (void)!write(event_fd_, &one, sizeof(one));
  }

  // Acts like the first stop signal, from any thread; no effect after one.
  void RequestStop() {
    Stop none = Stop::kNone;
    if (stop_.compare_exchange_strong(none, Stop::kRequested)) Notify();
  }

  // True after a stop signal or RequestStop(). Returns false after a Notify(), another signal, or
  // the timeout.
  bool WaitForSignal(milliseconds time) {
    std::array<pollfd, 2> fds{pollfd{signal_fd_, POLLIN, 0}, pollfd{event_fd_, POLLIN, 0}};
    (void)poll(fds.data(), fds.size(), static_cast<int>(time.count()));
    uint64_t count;
    (void)!read(event_fd_, &count, sizeof(count));
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) {
      Stop requested = Stop::kRequested;
      return stop_.compare_exchange_strong(requested, Stop::kComes);
    }
    const int number = static_cast<int>(info.ssi_signo);
    if (std::ranges::find(kStopSignals, number) != kStopSignals.end()) {
      stop_ = Stop::kComes;
      return true;
    }
    if (number == kReloadSignal) {
      reload_();
      return false;
    }
    spdlog::warn("SIG{} is ignored; SIGTERM ends this process", sigabbrev_np(number));
    return false;
  }

 private:
  enum class Stop : uint8_t { kNone, kRequested, kComes };

  const std::function<void()> reload_;
  std::atomic<Stop> stop_{Stop::kNone};
  int signal_fd_;
  int event_fd_;
};

// Logs failures at a limited rate, and counts the others.
std::function<void(const absl::Status&)> LogFailures(const std::string& what) {
  return [what, next = Clock::time_point(), silent = 0](const absl::Status& status) mutable {
    if (Clock::now() < next) {
      ++silent;
      return;
    }
    const std::string more = silent > 0 ? fmt::format(" ({} more before it)", silent) : "";
    spdlog::warn("{}: {}{}", what, std::string(status.message()), more);
    next = Clock::now() + kUnsavedLogInterval;
    silent = 0;
  };
}

// Logs when the circuit breaker of an external service (a store, the collector) opens, and when it
// closes again.
Circuit::OnChange LogCircuit(const std::string& what) {
  return [what](const absl::Status& why) {
    if (why.ok()) {
      spdlog::info("{}: it answers again", what);
    } else {
      spdlog::warn("{}: {}; it is left alone, and asked again every 1 to 32 s", what,
                   std::string(why.message()));
    }
  };
}

// Certificates and tokens from the files named by the flags.
struct Access {
  std::shared_ptr<Certificates> certificates = nullptr;  // null: no TLS
  std::unique_ptr<Tenants> tenants = std::make_unique<Tenants>();
};

absl::StatusOr<Access> LoadAccess(const SecurityOptions& options) {
  Access access;
  if (!options.tls.certificate.empty()) {
    HYDRANT_ASSIGN_OR_RETURN(access.certificates, Certificates::Load(options.tls));
  }
  if (options.auth_tokens.empty()) return access;
  absl::StatusOr<std::unique_ptr<Tenants>> tenants = Tenants::Load(options.auth_tokens);
  if (!tenants.ok())
    return absl::InvalidArgumentError(
        fmt::format("--auth-tokens: {}", std::string(tenants.status().message())));
  access.tenants = *std::move(tenants);
  return access;
}

class Daemon {
 public:
  Daemon(const DaemonOptions& options, const ModelLoader& load, Access access, Tracing tracing)
      : options_(options),
        load_(load),
        access_(std::move(access)),
        tracing_(std::move(tracing)),
        wakeups_([this] { Reload(); }),
        router_(IsGpu(options.engine.device) ? milliseconds(0) : kMaxWriteWait),
        service_({.version = HYDRANT_VERSION,
                  .flags = options.flags,
                  .connections_age = options.max_connection_age.has_value(),
                  .tenants = access_.tenants.get(),
                  .tracer = tracing_.tracer.get(),
                  .cpus = ReadMachineLimits("", AffinityCpus()).cpus,
                  .context_store_timeout = options.context_store_timeout},
                 &router_),
        control_([this] { wakeups_.RequestStop(); }, [this] { return Requests(); }) {}

  absl::Status Run() {
    const SecurityOptions& security = options_.security;
    HYDRANT_RETURN_IF_ERROR(Listen("--listen", options_.listen, options_.default_cache));
    for (const DaemonOptions::ListenAs& more : options_.listen_as)
      HYDRANT_RETURN_IF_ERROR(Listen("--listen-as", more.address, more.cache));
    if (!security.control_listen.empty())
      HYDRANT_RETURN_IF_ERROR(
          Listen("--control-listen", security.control_listen, options_.default_cache, true));
    port_probe_ =
        std::make_unique<PortProbe>(servers_.front()->LocalAddress(),
                                    PortProbe::Options{.tls = access_.certificates != nullptr});
    HYDRANT_RETURN_IF_ERROR(StartMetrics());
    spdlog::info("hydrantd {} listens on {} and loads {}", HYDRANT_VERSION,
                 AddressOf(options_.listen, *servers_.front()), options_.model_path);
    for (size_t i = 0; i < options_.listen_as.size(); ++i) {
      const DaemonOptions::ListenAs& more = options_.listen_as[i];
      spdlog::info("and on {}, where requests that name no policy get {}",
                   AddressOf(more.address, *servers_[i + 1]), more.cache.text);
    }
    if (!security.control_listen.empty())
      spdlog::info("control on {}", AddressOf(security.control_listen, *servers_.back()));
    LogAccess();
    if (tracing_.exporter != nullptr) spdlog::info("traces go to {}", options_.traces.endpoint);
    if (options_.traces.disabled) spdlog::info("no traces: OTEL_SDK_DISABLED is true");
    spdlog::info("{} files may be open, {} of them connections", DescriptorLimit(),
                 DescriptorsForConnections(DescriptorLimit()));
    WarnOfManyThreads();
    std::thread loader([this] { Load(); });
    const bool stopped_early = WaitUntilLoaded();
    if (stopped_early) ExitWhileLoading();
    loader.join();
    if (!load_status_.ok()) return load_status_;
    const absl::Status engine = Serve();
    Notify(kServiceStopping);
    // Without a delay new requests are refused as soon as health reports NOT_SERVING.
    if (options_.drain_delay.count() == 0) service_.SetDraining();
    SetServing(false);
    if (engine.ok()) WaitForBalancers();
    Drain();
    return engine;
  }

 private:
  absl::Status Listen(const char* flag, const std::string& address,
                      const DefaultCache& default_cache, bool is_control = false) {
    const SecurityOptions& security = options_.security;
    const GrpcServerOptions server{.listen = address,
                                   .default_cache = default_cache,
                                   .max_connection_age = options_.max_connection_age,
                                   .max_connection_age_grace = options_.max_connection_age_grace,
                                   .max_metadata_bytes = security.max_metadata_bytes,
                                   .max_concurrent_streams = security.max_concurrent_streams,
                                   .max_connections = security.max_connections,
                                   .certificates = access_.certificates,
                                   .insecure = security.insecure,
                                   .authorizer = {.tenants = access_.tenants.get(),
                                                  .metrics = &authorizer_metrics_,
                                                  .has_control = !security.control_listen.empty(),
                                                  .is_control = is_control},
                                   .connection_metrics = &connection_metrics_,
                                   .control = is_control ? &control_ : nullptr};
    absl::StatusOr<std::unique_ptr<GrpcServer>> started = GrpcServer::Start(server, &service_);
    if (!started.ok())
      return {started.status().code(),
              fmt::format("{}: {}", flag, std::string(started.status().message()))};
    servers_.push_back(*std::move(started));
    return absl::OkStatus();
  }

  v1::DrainProgress Requests() const {
    const ServingLoop* loop = service_.Current().loop;  // null: the model is loading
    const ServingStats now = loop == nullptr ? ServingStats() : loop->Stats();
    v1::DrainProgress progress;
    progress.set_running_requests(static_cast<uint32_t>(now.running + now.prefilling));
    progress.set_waiting_requests(static_cast<uint32_t>(now.waiting));
    return progress;
  }

  void LogAccess() const {
    const SecurityOptions& security = options_.security;
    spdlog::info(
        "{}; {}",
        access_.certificates == nullptr                   ? "no TLS"
        : access_.certificates->WantsClientCertificates() ? "TLS, with clients' certificates"
                                                          : "TLS",
        access_.tenants->RequiresTokens()
            ? fmt::format("{} tokens of {}", access_.tenants->num_tokens(), security.auth_tokens)
            : "no tokens: whoever connects may call");
  }

  // SIGHUP; invalid files are ignored with an error.
  void Reload() {
    if (access_.certificates == nullptr && !access_.tenants->RequiresTokens()) {
      spdlog::warn("SIGHUP is ignored: there are neither tokens nor certificates to read anew");
      return;
    }
    // logs its own errors
    if (access_.certificates != nullptr) (void)access_.certificates->Reload();
    if (!access_.tenants->RequiresTokens()) return;
    if (const absl::Status tokens = access_.tenants->Reload(SteadyUs()); !tokens.ok()) {
      spdlog::error("--auth-tokens: {}; the tokens from before stay in force",
                    std::string(tokens.message()));
    } else {
      spdlog::info("{} tokens of {} are in force", access_.tenants->num_tokens(),
                   options_.security.auth_tokens);
    }
  }

  static std::string AddressOf(const std::string& listen, const GrpcServer& server) {
    if (listen.starts_with("unix:")) return listen;
    return listen.substr(0, listen.find_last_of(':') + 1) + std::to_string(server.port());
  }

  static void Notify(std::string_view state) {
    const absl::Status notified = NotifySystemd(state);
    if (!notified.ok())
      spdlog::warn("systemd does not hear {}: {}", state, std::string(notified.message()));
  }

  void SetServing(bool serving) {
    for (const auto& server : servers_) server->SetServing(serving);
  }

  void ShutDownServers(milliseconds grace) {
    const auto until = Clock::now() + grace;
    for (const auto& server : servers_) {
      const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
      server->Shutdown(std::max(left, milliseconds(0)));
    }
  }

  void WarnOfManyThreads() const {
    const MachineLimits machine = ReadMachineLimits("", AffinityCpus());
    if (options_.engine.num_threads <= std::ceil(machine.cpus)) return;
    spdlog::warn(
        "--threads {} is more than the {:.4g} CPUs this process may use ({}): they will wait for "
        "each other",
        options_.engine.num_threads, machine.cpus, machine.cpu_source);
  }

  absl::Status StartMetrics() {
    if (options_.metrics_listen.empty()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<HttpServer>> started = HttpServer::Start(
        options_.metrics_listen, {{"/metrics", [this] { return Metrics(); }},
                                  {"/livez", [this] { return Probe(&Health::live); }},
                                  {"/readyz", [this] { return Probe(&Health::ready); }},
                                  {"/", [this] { return status_page_.Page(); }},
                                  {"/status.json", [this] {
                                     return status_page_.Status(service_.Current(), CurrentHealth(),
                                                                SteadyUs());
                                   }}});
    if (!started.ok())
      return {started.status().code(),
              fmt::format("--metrics-listen: {}", std::string(started.status().message()))};
    metrics_server_ = *std::move(started);
    spdlog::info("metrics and probes on http://{}", metrics_server_->address());
    return absl::OkStatus();
  }

  Health CurrentHealth() const {
    return JudgeHealth(service_.Current(), SteadyUs(), StallTimeoutUs(), port_probe_->state());
  }

  HttpAnswer Probe(bool Health::*good) const {
    const Health health = CurrentHealth();
    return {.status = health.*good ? 200 : 503, .body = health.why + "\n"};
  }

  HttpAnswer Metrics() const {
    const ServingState serving = service_.Current();
    const TimeUs now = SteadyUs();
    const MetricsArgs args{
        .version = HYDRANT_VERSION,
        .started_at = started_at_,
        .serving = serving,
        .health = JudgeHealth(serving, now, StallTimeoutUs(), port_probe_->state()),
        .requests = &service_.request_metrics(),
        .now = now,
        .tenants = access_.tenants.get(),
        .authorizer = &authorizer_metrics_,
        .connections = &connection_metrics_,
        .spans = tracing_.exporter == nullptr ? nullptr : &tracing_.exporter->metrics(),
        .collector = tracing_.exporter == nullptr ? nullptr : &tracing_.exporter->circuit()};
    return {.body = MetricsText(args), .content_type = kMetricsContentType};
  }

  static TimeUs SteadyUs() {
    return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
        .count();
  }
  TimeUs StallTimeoutUs() const {
    return std::chrono::microseconds(options_.stall_timeout).count();
  }

  // Runs on the loader's thread.
  void Load() {
    load_status_ = TryLoad();
    loaded_ = true;
    wakeups_.Notify();
  }

  absl::Status TryLoad() {
    const CheckedRounding checked = CheckedRoundingOf(options_);
    HYDRANT_ASSIGN_OR_RETURN(const std::optional<CheckReading> exact, ReadUnrounded(checked));
    HYDRANT_ASSIGN_OR_RETURN(model_, load_(options_, [&](double fraction) {
                               // The second half of the loading where there was another.
                               service_.SetLoadFraction(exact ? (1 + fraction) / 2 : fraction);
                             }));
    HYDRANT_ASSIGN_OR_RETURN(
        loop_, ServingLoop::Start(model_->engine.get(), model_->tokenizer.get(), options_.scheduler,
                                  &router_));
    HYDRANT_RETURN_IF_ERROR(TraceSteps());
    HYDRANT_RETURN_IF_ERROR(OpenStores());
    const StartupRequests requests(loop_.get(), &router_, [this] { return service_.NextHandle(); });
    const absl::Status warm = WarmUp(requests, *model_->tokenizer);
    if (!warm.ok())
      return {warm.code(),
              fmt::format("the warm-up token failed: {}", std::string(warm.message()))};
    if (exact) HYDRANT_RETURN_IF_ERROR(CheckRounding(requests, checked, *exact));
    const ServedModel& served = model_->served;
    spdlog::info("engine: {}", served.engine_description);
    spdlog::info("{}", MemorySummary(served.memory));
    spdlog::info("{}", PoolSummary(served.limits, served.page_bytes));
    if (served.chat_template == nullptr)
      spdlog::warn("chat prompts are refused: {}", served.no_chat_reason);
    return absl::OkStatus();
  }

  // Unset where nothing is to be checked, or cannot be.
  absl::StatusOr<std::optional<CheckReading>> ReadUnrounded(const CheckedRounding& checked) {
    if (!checked.Any()) return std::nullopt;
    const std::string flags = FlagsOf(checked, options_);
    spdlog::info("{}: the model reads a text first without this rounding, for a check", flags);
    absl::StatusOr<CheckReading> reading =
        ReadCheckTextUnrounded(options_, checked, load_,
                               [this](double fraction) { service_.SetLoadFraction(fraction / 2); });
    if (absl::IsResourceExhausted(reading.status())) {
      spdlog::warn("{}: not checked, because the model does not fit without this rounding: {}",
                   flags, std::string(reading.status().message()));
      return std::nullopt;
    }
    return reading;
  }

  absl::Status CheckRounding(const StartupRequests& requests, const CheckedRounding& checked,
                             const CheckReading& exact) const {
    const absl::StatusOr<CheckReading> rounded =
        ReadCheckText(requests, *model_->tokenizer, model_->served.limits.max_model_len);
    if (!rounded.ok())
      return {rounded.status().code(),
              fmt::format("the check of {} failed: {}", FlagsOf(checked, options_),
                          std::string(rounded.status().message()))};
    return JudgeLoss(LossBetween(exact, *rounded), checked, options_);
  }

  absl::Status TraceSteps() {
    if (options_.trace_steps.empty()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<StepTrace>> trace = StepTrace::Open(options_.trace_steps);
    if (!trace.ok()) {
      return absl::Status(trace.status().code(),
                          fmt::format("--trace-steps: {}", std::string(trace.status().message())));
    }
    trace_ = *std::move(trace);
    loop_->OnStep([this](const StepTaken& step, const ServingStats& stats,
                         const std::vector<Event>& events) { trace_->Add(step, stats, events); });
    return absl::OkStatus();
  }

  // Null if no store is configured.
  static absl::StatusOr<std::unique_ptr<ContextStore>> OpenStore(
      const char* flag, const std::string& uri, const std::optional<int64_t>& max_bytes,
      std::string_view what) {
    if (uri.empty()) return nullptr;
    absl::StatusOr<std::unique_ptr<ContextStore>> store =
        OpenContextStore(uri, {.max_bytes = max_bytes.value_or(0)});
    if (!store.ok()) {
      return absl::Status(store.status().code(),
                          fmt::format("{}: {}", flag, std::string(store.status().message())));
    }
    spdlog::info("{} are saved in {}", what, (*store)->Description());
    return store;
  }

  absl::Status OpenStores() {
    HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<ContextStore> contexts,
                             OpenStore("--context-store", options_.context_store,
                                       options_.context_store_bytes, "contexts"));
    contexts_ = std::make_unique<ContextArchive>(
        loop_.get(), model_->engine->offload_memory(), HomeOf(model_->served), std::move(contexts),
        ContextArchiveOptions{.on_unsaved = LogFailures("not saved"),
                              .on_circuit = LogCircuit("context store"),
                              .patience = kSavesToAPatience * options_.context_store_timeout});
    HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<ContextStore> prefixes,
                             OpenStore("--prefix-cache-store", options_.prefix_store,
                                       options_.prefix_store_bytes, "prefix blocks"));
    const ServedModel& served = model_->served;
    if (prefixes == nullptr || served.limits.num_prefix_blocks == 0) return absl::OkStatus();
    SharePrefixKeys(PrefixSecretOf(HomeOf(served)));
    prefixes_ = std::make_unique<PrefixArchive>(
        loop_.get(), model_->tokenizer.get(), served.limits, model_->engine->prefix_memory(),
        std::move(prefixes), LogFailures("prefix cache store"), LogCircuit("prefix cache store"));
    return absl::OkStatus();
  }

  // True if a signal arrived first.
  bool WaitUntilLoaded() {
    while (!loaded_) {
      if (wakeups_.WaitForSignal(kHealthInterval)) return true;
    }
    return false;
  }

  // Packing weights cannot be interrupted and there are no requests: exits without waiting for it.
  [[noreturn]] void ExitWhileLoading() {
    spdlog::info("stopped while loading");
    exit_deadline_.Set(kLastResort);
    Notify(kServiceStopping);
    service_.SetDraining();
    control_.End();
    ShutDownServers(milliseconds(0));
    spdlog::default_logger()->flush();
    std::_Exit(EXIT_SUCCESS);
  }

  // Serves until a signal, or until engine_lost_linger after the engine was lost; returns the
  // engine's status. A lost engine does not recover, but monitoring should see it before the
  // process ends.
  absl::Status Serve() {
    signal(SIGABRT, SIG_DFL);  // until here, hydrantd.cc handles it
    service_.SetReady(&model_->served, loop_.get(), contexts_.get(), prefixes_.get());
    SetServing(true);
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    spdlog::info("ready after {:.1f} s: \"{}\" on {}", seconds, model_->served.name,
                 AddressOf(options_.listen, *servers_.front()));
    Notify(kServiceReady);
    while (!wakeups_.WaitForSignal(kHealthInterval)) {
      const ServingStats loop = loop_->Stats();
      const absl::Status engine = loop_->EngineStatus();
      if (engine.ok()) {
        ShowHealth();
        malloc_trimmer_.Poll(loop_->Idle(), loop.steps);
        if (const auto line = queue_wait_monitor_.Look(loop, SteadyUs())) spdlog::warn("{}", *line);
        continue;
      }
      spdlog::error("{}; this process will end", std::string(engine.message()));
      service_.SetEngineLost(engine);
      SetServing(false);
      const auto until = Clock::now() + options_.engine_lost_linger;
      while (Clock::now() < until && !wakeups_.WaitForSignal(kHealthInterval)) {
      }
      break;
    }
    return loop_->EngineStatus();
  }

  // gRPC's health service reports as /readyz, except for a full port, which does not affect
  // open connections.
  void ShowHealth() {
    const Health health = CurrentHealth();
    if (health.serves != shown_.serves) SetServing(health.serves);
    if (health.ready && !shown_.ready) spdlog::info("ready again");
    if (!health.ready && shown_.ready) spdlog::error("not ready: {}", health.why);
    shown_ = health;
  }

  // Clients that watch the health, and load balancers, stop sending new requests; others are
  // still served.
  void WaitForBalancers() {
    if (options_.drain_delay.count() == 0) return;
    spdlog::info("not serving: requests are taken for another {} ms", options_.drain_delay.count());
    service_.AnnounceDrain();
    const auto until = Clock::now() + options_.drain_delay;
    while (Clock::now() < until && !wakeups_.WaitForSignal(kDrainInterval)) control_.Notify();
  }

  void Drain() {
    spdlog::info("draining: running requests have {} ms to end", options_.shutdown_timeout.count());
    exit_deadline_.Set(options_.shutdown_timeout + kLastResort);
    service_.SetDraining();
    loop_->StopAdmitting();
    auto deadline = Clock::now() + options_.shutdown_timeout;
    while (!loop_->Idle() && Clock::now() < deadline) {
      // A second signal ends the wait for running requests.
      if (wakeups_.WaitForSignal(kDrainInterval)) deadline = Clock::now();
      control_.Notify();
    }
    control_.End();
    CloseStores(std::max(deadline, Clock::now() + kSaveGrace));
    loop_->Stop();
    port_probe_->Stop();
    ShutDownServers(kLastMessagesGrace);
    if (tracing_.exporter != nullptr) tracing_.exporter->Stop(kLastSpansGrace);
    spdlog::info("stopped");
  }

  // Waits until the deadline for saves and for calls that wait for a store. Later calls fail.
  void CloseStores(Clock::time_point deadline) {
    if (!contexts_->Flush(deadline)) spdlog::warn("some contexts could not be saved in time");
    contexts_->Stop(deadline);
    if (prefixes_ == nullptr) return;
    if (!prefixes_->Flush(deadline)) spdlog::warn("some prefix blocks could not be saved in time");
    prefixes_->Stop(deadline);
  }

  ExitDeadline exit_deadline_;  // first, so destroyed last: the destructors of the others may hang
  const DaemonOptions& options_;
  const ModelLoader& load_;
  const Clock::time_point start_ = Clock::now();
  const std::chrono::system_clock::time_point started_at_ = std::chrono::system_clock::now();
  const Access access_;
  const Tracing tracing_;
  AuthorizerMetrics authorizer_metrics_;
  ConnectionGuardMetrics connection_metrics_;
  Wakeups wakeups_;
  EventRouter router_;
  Service service_;
  ControlService control_;
  // Destroyed in reverse order: servers, archives, loop, model.
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<StepTrace> trace_;  // null: none; the loop writes to it
  std::unique_ptr<ServingLoop> loop_;
  std::unique_ptr<ContextArchive> contexts_;
  std::unique_ptr<PrefixArchive> prefixes_;           // null: prefix blocks are not saved
  std::vector<std::unique_ptr<GrpcServer>> servers_;  // first: the one of --listen
  std::unique_ptr<PortProbe> port_probe_;
  StatusPage status_page_;                      // used on the metrics server's thread
  std::unique_ptr<HttpServer> metrics_server_;  // null: no --metrics-listen
  MallocTrimmer malloc_trimmer_;
  QueueWaitMonitor queue_wait_monitor_{options_.scheduler};
  // last state reported by gRPC's health service, once ready
  Health shown_{.ready = true, .serves = true};

  absl::Status load_status_;  // written by the loader until loaded_
  std::atomic<bool> loaded_{false};
};

// Call it before the first thread that touches weights or pages.
void SpreadOverNumaNodes() {
  const std::vector<int> nodes = ReadMachineLimits("", AffinityCpus()).numa_nodes;
  if (nodes.size() < 2) return;
  const absl::Status status = InterleaveMemory(nodes);
  if (status.ok()) {
    spdlog::info("memory is spread over the NUMA nodes {}", absl::StrJoin(nodes, ", "));
  } else {
    spdlog::warn("memory is not spread over the NUMA nodes {}: {}", absl::StrJoin(nodes, ", "),
                 std::string(status.message()));
  }
}

}  // namespace

void BlockSignals() {
  const sigset_t set = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

absl::Status RunDaemon(const DaemonOptions& options, const ModelLoader& load) {
  HYDRANT_ASSIGN_OR_RETURN(Access access, LoadAccess(options.security));
  HYDRANT_ASSIGN_OR_RETURN(Tracing tracing, StartTracing(options.traces, HYDRANT_VERSION,
                                                         LogFailures(options.traces.endpoint_from),
                                                         LogCircuit(options.traces.endpoint_from)));
  // First, so that a missing device is reported before gigabytes of a model are read.
  HYDRANT_ASSIGN_OR_RETURN(DeviceChoice device, ChooseDevice(options.engine.device));
  spdlog::info("device {}: {}, because {}", options.engine.device, device.name, device.reason);
  if (device.name == "cpu") SpreadOverNumaNodes();
  DaemonOptions chosen = options;
  chosen.engine.device = std::move(device.name);
  return Daemon(chosen, load, std::move(access), std::move(tracing)).Run();
}

}  // namespace hydrant
