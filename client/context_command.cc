#include "client/context_command.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>

#include "client/event_printer.h"
#include "client/rpc_error.h"
#include "kernels/standard_streams.h"

namespace hydrant {
namespace {

constexpr int kExitUsage = 2;

std::string Duration(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 172800) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} days", seconds / 86400);
}

std::string Expiry(const v1::Context& context) {
  if (context.pinned() && !context.has_expires_us()) return "pinned";
  if (!context.has_expires_us()) return "";
  const auto now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
  const double left = static_cast<double>(context.expires_us()) * 1e-6 - now.count();
  return (context.pinned() ? "pinned, " : "") + Duration(std::max(left, 0.0)) + " left";
}

void PrintHeader() {
  PrintOut("{:<36} {:>8} {:>10} {:>10} {:>10}  {:<12} {}\n", "HANDLE", "TOKENS", "MEMORY", "STORED",
           "RETAINED", "POLICY", "");
}

// Unknown values of a context that is only in the store are left out.
void PrintRow(const v1::Context& context) {
  const bool here = context.in_memory();
  PrintOut(
      "{:<36} {:>8} {:>10} {:>10} {:>10}  {:<12} {}\n", context.handle(),
      here ? std::to_string(context.tokens()) : "-", here ? SizeText(context.memory_bytes()) : "-",
      context.has_stored_bytes() ? SizeText(context.stored_bytes()) : "-",
      context.has_retained_mass() ? fmt::format("{:.1f} %", 100 * context.retained_mass().mean())
                                  : "-",
      here ? context.cache_policy() : "-", Expiry(context));
}

int Report(const grpc::Status& status, const Connection& connection) {
  PrintErr("hydrant: {}\n", DescribeError(status, connection.address()));
  return ExitCodeOf(status);
}

int PrintContext(const v1::Context& context, bool json) {
  if (json) {
    PrintJson(context);
  } else {
    PrintHeader();
    PrintRow(context);
  }
  return 0;
}

v1::CompressContextRequest MakeCompression(const ContextFlags& flags) {
  const v1::GenerateRequest like = MakeRequest(flags.request);
  v1::CompressContextRequest request;
  if (like.has_model()) request.set_model(like.model());
  if (like.has_request_id()) request.set_request_id(like.request_id());
  *request.mutable_cache() = like.cache();
  if (!flags.handle.empty()) request.set_handle(flags.handle);
  if (flags.ttl_s.has_value())
    request.set_ttl_s(static_cast<uint64_t>(std::llround(std::max(1.0, *flags.ttl_s))));
  if (flags.pinned) request.set_pinned(true);
  return request;
}

int Compress(Connection* connection, const v1::CompressContextRequest& request, bool json,
             bool quiet) {
  grpc::ClientContext call;
  v1::CompressContextResponse response;
  const auto begin = std::chrono::steady_clock::now();
  const grpc::Status status = connection->stub().CompressContext(&call, request, &response);
  if (!status.ok()) return Report(status, *connection);
  if (json) {
    PrintJson(response);
    return 0;
  }
  const v1::Context& context = response.context();
  PrintOut("{}\n", context.handle());
  if (quiet) return 0;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  PrintErr("[{} tokens read in {:.1f} s, {} kept", context.tokens(), took.count(),
           SizeText(context.memory_bytes()));
  if (context.has_retained_mass())
    PrintErr(", {:.1f} % of the attention", 100 * context.retained_mass().mean());
  PrintErr("; ask with: hydrant generate --context {} --prompt ...]\n", context.handle());
  return 0;
}

template <typename Request>
Request Naming(const ContextFlags& flags) {
  Request request;
  if (flags.request.model) request.set_model(*flags.request.model);
  if (flags.request.cache_salt) request.set_cache_salt(*flags.request.cache_salt);
  return request;
}

template <typename Request, typename Call>
int ShowAfter(Connection* connection, const ContextFlags& flags, bool json, const Call& call) {
  auto request = Naming<Request>(flags);
  request.set_handle(flags.handle);
  v1::Context context;
  grpc::ClientContext client;
  const grpc::Status status = call(&client, request, &context);
  return status.ok() ? PrintContext(context, json) : Report(status, *connection);
}

int List(Connection* connection, const ContextFlags& flags, bool json) {
  v1::ListContextsResponse list;
  grpc::ClientContext client;
  const grpc::Status status =
      connection->stub().ListContexts(&client, Naming<v1::ListContextsRequest>(flags), &list);
  if (!status.ok()) return Report(status, *connection);
  if (json) {
    PrintJson(list);
    return 0;
  }
  PrintHeader();
  for (const v1::Context& context : list.contexts()) PrintRow(context);
  return 0;
}

int Delete(Connection* connection, const ContextFlags& flags) {
  auto request = Naming<v1::DeleteContextRequest>(flags);
  request.set_handle(flags.handle);
  v1::DeleteContextResponse response;
  grpc::ClientContext client;
  const grpc::Status status = connection->stub().DeleteContext(&client, request, &response);
  return status.ok() ? 0 : Report(status, *connection);
}

}  // namespace

void AddContextCommands(CLI::App* app, ContextFlags* flags) {
  CLI::App* context = app->add_subcommand(
      "context", "Texts that are read once, compressed and kept, for any number of questions");
  context->require_subcommand(1);
  context->fallthrough();
  const auto add = [&](const char* name, const char* what) {
    CLI::App* action = context->add_subcommand(name, what);
    action->callback([flags, name] { flags->action = name; });
    return action;
  };
  CLI::App* compress =
      add("compress", "Read a text, keep what the policy says, and say its handle");
  compress->add_option("--prompt", flags->prompt, "The text; default: what is piped in");
  compress->add_option("--prompt-file", flags->prompt_file, "A file with the text; -: stdin");
  compress->add_option("--prompt-ids", flags->ids, "Token ids instead of text");
  compress->add_option("--system", flags->system, "A system message of a chat instead");
  compress->add_option("--name", flags->handle, "The handle it gets; default: drawn by the server");
  compress->add_option("--ttl", flags->ttl_s, "Seconds until it is forgotten; default: never")
      ->check(CLI::PositiveNumber);
  compress->add_flag("--pinned", flags->pinned, "It does not leave for others");
  AddCacheFlags(compress, &flags->request);
  compress->get_option("--policy")
      ->description("What to evict: a name of `hydrant info`; default auto");
  compress->get_option("--cache-ratio")
      ->description("Share of the text's entries a KV head keeps, (0, 1]; default 0.2");
  for (CLI::App* action :
       {add("list", "All of them"), add("show", "One of them"),
        add("save", "Into the server's store, now"), add("load", "From there into its memory"),
        add("delete", "Here and in the store")}) {
    if (action->get_name() != "list")
      action->add_option("handle", flags->handle, "The context's")->required();
    action->add_option("--cache-salt", flags->request.cache_salt, "That it was made with");
  }
}

int RunContextCommand(
    Connection* connection, const ContextFlags& flags, bool json, bool quiet,
    const std::function<std::optional<std::string>(const std::string& file)>& read) {
  v1::Hydrant::Stub& stub = connection->stub();
  if (flags.action == "list") return List(connection, flags, json);
  if (flags.action == "delete") return Delete(connection, flags);
  if (flags.action == "show") {
    return ShowAfter<v1::GetContextRequest>(connection, flags, json,
                                            [&](auto* client, const auto& request, auto* context) {
                                              return stub.GetContext(client, request, context);
                                            });
  }
  if (flags.action == "save") {
    return ShowAfter<v1::SaveContextRequest>(connection, flags, json,
                                             [&](auto* client, const auto& request, auto* context) {
                                               return stub.SaveContext(client, request, context);
                                             });
  }
  if (flags.action == "load") {
    return ShowAfter<v1::LoadContextRequest>(connection, flags, json,
                                             [&](auto* client, const auto& request, auto* context) {
                                               return stub.LoadContext(client, request, context);
                                             });
  }
  v1::CompressContextRequest request = MakeCompression(flags);
  if (!flags.system.empty()) {
    v1::ChatMessage* message = request.mutable_chat()->add_messages();
    message->set_role("system");
    message->set_content(flags.system);
  } else if (!flags.ids.empty()) {
    request.mutable_token_ids()->mutable_ids()->Assign(flags.ids.begin(), flags.ids.end());
  } else {
    const std::optional<std::string> text =
        flags.prompt.has_value() ? flags.prompt : read(flags.prompt_file);
    if (!text.has_value()) return kExitUsage;
    request.set_text(*text);
  }
  return Compress(connection, request, json, quiet);
}

}  // namespace hydrant
