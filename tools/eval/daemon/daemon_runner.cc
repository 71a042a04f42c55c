#include "tools/eval/daemon/daemon_runner.h"

#include <utility>

#include "client/connection.h"
#include "client/rpc_error.h"
#include "fmt/format.h"
#include "kernels/status_macros.h"

namespace hydrant::eval {
namespace {

v1::Cache CacheOf(const CacheSpec& spec) {
  v1::Cache cache;
  cache.set_cache_policy(spec.policy);
  if (spec.cache_ratio) cache.set_cache_ratio(*spec.cache_ratio);
  if (spec.max_cache_tokens) cache.set_max_cache_tokens(*spec.max_cache_tokens);
  if (spec.min_cache_tokens) cache.set_min_cache_tokens(*spec.min_cache_tokens);
  if (spec.sink_tokens) cache.set_sink_tokens(*spec.sink_tokens);
  if (spec.protected_window_size) cache.set_protected_window_size(*spec.protected_window_size);
  if (spec.min_retained_mass) cache.set_min_retained_mass(*spec.min_retained_mass);
  cache.mutable_params()->insert(spec.params.begin(), spec.params.end());
  return cache;
}

void SetTokens(const std::vector<TokenId>& tokens, v1::TokenIds* wire) {
  wire->mutable_ids()->Assign(tokens.begin(), tokens.end());
}

// One arm's conversation with the daemon. Its contexts are deleted with it.
class Talk {
 public:
  Talk(Connection* connection, const Arm& arm) : connection_(*connection), arm_(arm) {}
  ~Talk() {
    for (const std::string& handle : contexts_) {
      v1::DeleteContextRequest request;
      request.set_handle(handle);
      v1::DeleteContextResponse ignored;
      grpc::ClientContext context;
      (void)connection_.stub().DeleteContext(&context, request, &ignored);
    }
  }
  Talk(const Talk&) = delete;
  Talk& operator=(const Talk&) = delete;

  absl::Status Run(const Trial& trial, Outcome* outcome) {
    const bool question_is_seen =
        trial.dialogues.size() == 1 && trial.dialogues[0].front().read.empty();
    v1::GenerateRequest first;
    std::vector<TokenId> unread;
    if (question_is_seen) {
      *first.mutable_cache() = CacheOf(arm_.cache);
      unread = trial.context;
    } else {
      HYDRANT_ASSIGN_OR_RETURN(const std::string context, Compress(trial.context, outcome));
      Continue(context, &first);
    }
    for (const Dialogue& dialogue : trial.dialogues) {
      HYDRANT_ASSIGN_OR_RETURN(std::vector<Answer> answers,
                               Converse(dialogue, first, unread, outcome));
      outcome->answers.push_back(std::move(answers));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ToAbsl(const grpc::Status& status) const {
    return {static_cast<absl::StatusCode>(status.error_code()),
            DescribeError(status, connection_.address())};
  }

  // The request goes on from a context.
  void Continue(const std::string& context, v1::GenerateRequest* request) const {
    request->set_context(context);
    if (arm_.recall_tokens > 0)
      request->set_recall_tokens(static_cast<uint32_t>(arm_.recall_tokens));
  }

  // The handle of the compressed context.
  absl::StatusOr<std::string> Compress(const std::vector<TokenId>& tokens, Outcome* outcome) {
    v1::CompressContextRequest request;
    SetTokens(tokens, request.mutable_token_ids());
    *request.mutable_cache() = CacheOf(arm_.cache);
    v1::CompressContextResponse response;
    grpc::ClientContext context;
    const grpc::Status status = connection_.stub().CompressContext(&context, request, &response);
    if (!status.ok()) return ToAbsl(status);
    contexts_.push_back(response.context().handle());
    SetUsage(response.usage(), outcome);
    return contexts_.back();
  }

  static void SetUsage(const v1::Usage& usage, Outcome* outcome) {
    outcome->entries = static_cast<int64_t>(usage.kv_entries_of_prompt());
    if (usage.has_retained_mass()) outcome->retained_mass = usage.retained_mass().mean();
  }

  // `request` has the context or the cache that the dialogue begins with; `unread`: tokens before
  // its first exchange.
  absl::StatusOr<std::vector<Answer>> Converse(const Dialogue& dialogue,
                                               v1::GenerateRequest request,
                                               std::vector<TokenId> unread, Outcome* outcome) {
    std::vector<Answer> answers;
    for (size_t i = 0; i < dialogue.size(); ++i) {
      const Exchange& exchange = dialogue[i];
      unread.insert(unread.end(), exchange.read.begin(), exchange.read.end());
      Answer& answer = answers.emplace_back();
      if (exchange.generate == 0) continue;
      SetTokens(unread, request.mutable_token_ids());
      unread.clear();
      request.set_keep(i + 1 < dialogue.size());
      HYDRANT_ASSIGN_OR_RETURN(const std::string kept,
                               Generate(exchange, &request, &answer, outcome));
      request.clear_cache();
      Continue(kept, &request);
    }
    return answers;
  }

  // Returns the handle of the kept context; "" if none was to be kept.
  absl::StatusOr<std::string> Generate(const Exchange& exchange, v1::GenerateRequest* request,
                                       Answer* answer, Outcome* outcome) {
    request->mutable_sampling()->set_temperature(0);
    v1::Stopping* const stopping = request->mutable_stopping();
    stopping->set_max_tokens(exchange.generate);
    stopping->clear_stop();
    if (!exchange.stop.empty()) stopping->add_stop(exchange.stop);
    grpc::ClientContext context;
    const auto reader = connection_.stub().Generate(&context, *request);
    std::string kept;
    for (v1::GenerateResponse response; reader->Read(&response);) {
      answer->text += response.delta().text();
      if (response.has_finished()) kept = response.finished().context();
      if (response.has_usage() && request->has_cache()) SetUsage(response.usage(), outcome);
    }
    if (const grpc::Status status = reader->Finish(); !status.ok()) return ToAbsl(status);
    if (!kept.empty()) contexts_.push_back(kept);
    if (request->keep() && kept.empty()) {
      return absl::ResourceExhaustedError(
          "the daemon has no room to keep a conversation's cache (--context-memory-bytes)");
    }
    return kept;
  }

  Connection& connection_;
  const Arm& arm_;
  std::vector<std::string> contexts_;
};

class DaemonRunner final : public TrialRunner {
 public:
  DaemonRunner(std::unique_ptr<Connection> connection, std::string description)
      : connection_(std::move(connection)), description_(std::move(description)) {}

  std::vector<Outcome> Run(const Trial& trial, const std::vector<Arm>& arms) override {
    std::vector<Outcome> outcomes(arms.size() + 1);
    const Arm full = {.name = "full", .cache = {}};
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const absl::Status status =
          Talk(connection_.get(), i == 0 ? full : arms[i - 1]).Run(trial, &outcomes[i]);
      if (status.ok()) continue;
      if (i > 0 && absl::IsInvalidArgument(status)) {
        outcomes[i] = {.refused = status};
        continue;
      }
      for (Outcome& outcome : outcomes) outcome = {.refused = status};
      break;
    }
    return outcomes;
  }
  std::string Description() const override { return description_; }

 private:
  std::unique_ptr<Connection> connection_;
  std::string description_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TrialRunner>> ConnectToDaemon(const DaemonOptions& options,
                                                             const ModelConfig& config) {
  HYDRANT_RETURN_IF_ERROR(CheckAddress(options.address));
  HYDRANT_ASSIGN_OR_RETURN(Access access, ReadAccess({.tls_ca = options.tls_ca,
                                                      .tls_certificate = options.tls_certificate,
                                                      .tls_key = options.tls_key,
                                                      .token_file = options.token_file}));
  auto connection = std::make_unique<Connection>(options.address, std::move(access));
  grpc::Status status = connection->WaitUntilServing(options.wait_seconds);
  v1::GetModelInfoResponse model;
  v1::GetServerInfoResponse server;
  grpc::ClientContext model_context, server_context;
  if (status.ok()) status = connection->stub().GetModelInfo(&model_context, {}, &model);
  if (status.ok()) status = connection->stub().GetServerInfo(&server_context, {}, &server);
  if (!status.ok()) return absl::UnavailableError(DescribeError(status, options.address));
  if (std::cmp_not_equal(model.num_layers(), config.num_layers) ||
      std::cmp_not_equal(model.vocab_size(), config.vocab_size)) {
    return absl::FailedPreconditionError(
        fmt::format("{} serves {} with {} layers and {} token ids, --model has {} and {}",
                    options.address, model.name(), model.num_layers(), model.vocab_size(),
                    config.num_layers, config.vocab_size));
  }
  std::string description =
      fmt::format("{}: {}, hydrantd {}", options.address, model.name(), server.version());
  return std::make_unique<DaemonRunner>(std::move(connection), std::move(description));
}

}  // namespace hydrant::eval
