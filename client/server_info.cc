#include "client/server_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grpcpp/grpcpp.h>

#include <string>
#include <string_view>
#include <vector>

#include "client/event_printer.h"
#include "client/rpc_error.h"
#include "hydrant/v1/hydrant.pb.h"
#include "kernels/standard_streams.h"

namespace hydrant {
namespace {

constexpr int kExitOfUsage = 2;

std::string StateName(v1::ServerState state) {
  const std::string name = v1::ServerState_Name(state);
  constexpr std::string_view kPrefix = "SERVER_STATE_";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

void PrintModel(const v1::GetModelInfoResponse& model) {
  PrintOut("model     {} ({}): {} layers, {} query / {} KV heads of {}, vocabulary {}\n",
           model.name(), model.architecture(), model.num_layers(), model.num_heads(),
           model.num_kv_heads(), model.head_dim(), model.vocab_size());
  PrintOut("context   {} tokens here, {} trained; chat template: {}\n", model.max_model_len(),
           model.max_context(), model.has_chat_template() ? model.chat_template() : "none");
  if (model.has_sliding_window()) {
    PrintOut("window    {} of the {} layers keep the last {} tokens, whatever the cache policy\n",
             model.sliding_window_layers(), model.num_layers(), model.sliding_window());
  }
}

void PrintServer(const v1::GetServerInfoResponse& server) {
  PrintOut("server    hydrantd {}, {}, up {:.0f} s\n", server.version(), StateName(server.state()),
           server.uptime_us() * 1e-6);
  if (server.state() == v1::SERVER_STATE_LOADING)
    PrintOut("loading   {:.0f} %\n", server.load_fraction() * 100);
  if (server.has_pool()) {
    const v1::LoadInfo& load = server.load();
    PrintOut("engine    {}\n", server.engine());
    PrintOut("pool      {} of {} pages free, {} entries and {} bytes each\n",
             server.pool().pages_free(), server.pool().pages_total(), server.pool().block_size(),
             server.pool().page_bytes());
    PrintOut(
        "load      {} running, {} reading, {} waiting; {} prompt and {} new tokens so far, {} "
        "preemptions\n",
        load.running(), load.prefilling(), load.waiting(), load.prompt_tokens(),
        load.generation_tokens(), load.preemptions());
  }
}

void PrintPolicies(const v1::GetServerInfoResponse& server) {
  PrintOut("policies  `hydrant info POLICY` prints the parameters of one\n");
  for (const v1::PolicyInfo& policy : server.policies())
    PrintOut("  {:<14} {}\n", policy.name(), policy.description());
}

void PrintParameters(const v1::PolicyInfo& policy) {
  PrintOut("{}: {}\n", policy.name(), policy.description());
  if (policy.parameters().empty()) PrintOut("  It has no parameters.\n");
  for (const v1::PolicyParameter& p : policy.parameters()) {
    PrintOut("  {:<22} {} (default {}, {})\n", p.name(), p.description(), p.default_value(),
             p.range());
  }
}

grpc::Status Ask(Connection* connection, v1::GetServerInfoResponse* server) {
  grpc::ClientContext context;
  const grpc::Status status = connection->stub().GetServerInfo(&context, {}, server);
  if (!status.ok()) PrintErr("hydrant: {}\n", DescribeError(status, connection->address()));
  return status;
}

}  // namespace

int PrintInfo(Connection* connection, bool json) {
  v1::GetServerInfoResponse server;
  if (const grpc::Status status = Ask(connection, &server); !status.ok()) return ExitCodeOf(status);
  v1::GetModelInfoResponse model;
  grpc::ClientContext context;
  const bool has_model = connection->stub().GetModelInfo(&context, {}, &model).ok();
  if (json) {
    PrintJson(server);
    if (has_model) PrintJson(model);
    return 0;
  }
  PrintServer(server);
  if (has_model) PrintModel(model);
  PrintPolicies(server);
  return 0;
}

int PrintPolicy(Connection* connection, const std::string& name, bool json) {
  v1::GetServerInfoResponse server;
  if (const grpc::Status status = Ask(connection, &server); !status.ok()) return ExitCodeOf(status);
  std::vector<std::string> names;
  for (const v1::PolicyInfo& policy : server.policies()) {
    names.push_back(policy.name());
    if (policy.name() != name) continue;
    json ? PrintJson(policy) : PrintParameters(policy);
    return 0;
  }
  PrintErr("hydrant: info: '{}' is no policy of the server; one of {}\n", name,
           fmt::join(names, ", "));
  return kExitOfUsage;
}

}  // namespace hydrant
