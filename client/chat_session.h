// A conversation at the terminal: each line is a message, and each turn sends the whole history, or
// with recall_tokens the message alone, behind the kept cache of the turn before.
#ifndef HYDRANT_CLIENT_CHAT_SESSION_H_
#define HYDRANT_CLIENT_CHAT_SESSION_H_

#include <string>

#include "client/connection.h"
#include "client/event_printer.h"
#include "hydrant/v1/hydrant.pb.h"

namespace hydrant {

// One question, one answer. Returns the exit code.
int ChatOnce(Connection* connection, v1::GenerateRequest request, const std::string& system,
             const std::string& message, const PrintOptions& options);

// Chats until the end of the input, or /exit. Ctrl-C ends an answer; its partial text stays in
// the history. An empty answer or a refused message leaves the history unchanged. If the history
// is full, /drop forgets its older half and repeats the message. Returns the exit code of the
// last answer.
int ChatInteractively(Connection* connection, const v1::GenerateRequest& request,
                      const std::string& system, const PrintOptions& options);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_CHAT_SESSION_H_
