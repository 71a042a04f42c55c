#include "client/chat_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "client/rpc_error.h"

namespace hydrant {
namespace {

void AddMessage(v1::Chat* chat, const std::string& role, const std::string& content) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

void AddSystem(v1::Chat* chat, const std::string& system) {
  if (!system.empty()) AddMessage(chat, "system", system);
}

void ShowPrompt() {
  if (isatty(STDIN_FILENO) == 0) return;
  fmt::print(stderr, "> ");
  std::fflush(stderr);
}

}  // namespace

int ChatOnce(Connection* connection, v1::GenerateRequest request, const std::string& system,
             const std::string& message, const PrintOptions& options) {
  AddSystem(request.mutable_chat(), system);
  AddMessage(request.mutable_chat(), "user", message);
  return ExitCodeOf(GenerateAndPrint(connection, request, options, nullptr));
}

int ChatInteractively(Connection* connection, const v1::GenerateRequest& request,
                      const std::string& system, const PrintOptions& options) {
  if (isatty(STDIN_FILENO) != 0)
    fmt::print(stderr, "Ctrl-D or /exit ends the chat, /clear forgets it.\n");
  v1::Chat history = request.chat();
  AddSystem(&history, system);
  int exit_code = 0;
  ShowPrompt();
  for (std::string line; std::getline(std::cin, line); ShowPrompt()) {
    if (line == "/exit") break;
    if (line.empty()) continue;
    if (line == "/clear") {
      history = request.chat();
      AddSystem(&history, system);
      continue;
    }
    v1::GenerateRequest turn = request;
    // The next turn goes on from this one's cache, where there is still one. Behind a context of
    // the user's own all that was said since follows it each time.
    if (!turn.has_context()) {
      if (!turn.cache().has_reuse()) turn.mutable_cache()->set_reuse(v1::REUSE_COMPRESSED);
      if (turn.cache().reuse() == v1::REUSE_COMPRESSED) turn.set_keep(true);
    }
    *turn.mutable_chat() = history;
    AddMessage(turn.mutable_chat(), "user", line);
    std::string answer;
    const grpc::Status status = GenerateAndPrint(connection, turn, options, &answer);
    exit_code = ExitCodeOf(status);
    if (exit_code == 3) break;  // nobody is there
    if (!status.ok()) continue;
    history = turn.chat();
    AddMessage(&history, "assistant", answer);
  }
  return exit_code;
}

}  // namespace hydrant
