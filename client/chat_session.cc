#include "client/chat_session.h"

#include <algorithm>
#include <optional>

#include "client/line_reader.h"
#include "client/rpc_error.h"
#include "kernels/standard_streams.h"

namespace hydrant {
namespace {

constexpr int kExitNoServer = 3;

void AddMessage(v1::Chat* chat, const std::string& role, const std::string& content) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

v1::Chat Begin(const v1::GenerateRequest& request, const std::string& system) {
  v1::Chat chat = request.chat();
  if (!system.empty()) AddMessage(&chat, "system", system);
  return chat;
}

// Whether the server refused the chat because it is longer than the model's context.
bool IsFull(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::INVALID_ARGUMENT &&
         status.error_message().find("max_model_len") != std::string::npos;
}

class Conversation {
 public:
  Conversation(Connection* connection, const v1::GenerateRequest& request,
               const std::string& system, const PrintOptions& options)
      : connection_(connection),
        request_(request),
        begin_(Begin(request, system)),
        options_(options),
        history_(begin_) {}

  // Runs one line of input. False: the chat ends.
  bool Take(const std::string& line) {
    if (line == "/exit") return false;
    if (line == "/clear") {
      history_ = begin_;
      kept_.clear();
    } else if (line == "/drop") {
      Drop();
    } else if (!line.empty()) {
      Ask(line);
    }
    return exit_code_ != kExitNoServer && !OutputFailed();
  }
  int exit_code() const { return exit_code_; }

 private:
  void Ask(const std::string& message) {
    const v1::GenerateRequest turn = Turn(message);
    Reply reply;
    const grpc::Status status = GenerateAndPrint(connection_, turn, options_, &reply);
    const bool interrupted = status.error_code() == grpc::StatusCode::CANCELLED;
    exit_code_ = interrupted ? 0 : ExitCodeOf(status);
    refused_.reset();
    if (status.error_code() == grpc::StatusCode::NOT_FOUND && !kept_.empty()) {
      PrintErr("[the conversation's cache is gone: all of it is read again]\n");
      kept_.clear();
      Ask(message);
      return;
    }
    if (IsFull(status)) {
      refused_ = message;
      TellWaysOn();
    }
    if (!status.ok() && !(interrupted && !reply.text.empty())) return;
    kept_ = reply.context;
    TellIfNothingIsKept(turn);
    AddMessage(&history_, "user", message);
    AddMessage(&history_, "assistant", reply.text);
  }

  // With the user's own context each turn sends all messages behind that context.
  v1::GenerateRequest Turn(const std::string& message) const {
    v1::GenerateRequest turn = request_;
    if (turn.has_context()) {
      *turn.mutable_chat() = history_;
    } else if (turn.recall_tokens() > 0) {
      Continue(&turn);
    } else {
      // The next turn reuses this turn's cache if it is still kept.
      *turn.mutable_chat() = history_;
      if (!turn.cache().has_reuse()) turn.mutable_cache()->set_reuse(v1::REUSE_COMPRESSED);
      if (turn.cache().reuse() == v1::REUSE_COMPRESSED) turn.set_keep(true);
    }
    AddMessage(turn.mutable_chat(), "user", message);
    return turn;
  }

  // Continues the kept cache of the turn before with the new message. That cache also holds the
  // recalled passages, which the history lacks, so the server could not match the history with it.
  void Continue(v1::GenerateRequest* turn) const {
    turn->set_keep(true);
    if (kept_.empty()) {
      *turn->mutable_chat() = history_;
      turn->clear_recall_tokens();
      return;
    }
    turn->mutable_chat()->set_continues_context(true);
    turn->set_context(kept_);
    v1::Cache cache;  // the policy stays the context's
    if (turn->cache().has_cache_salt()) cache.set_cache_salt(turn->cache().cache_salt());
    *turn->mutable_cache() = cache;
  }

  // Drops the older half of the turns, and repeats a refused message.
  void Drop() {
    const int turns = NumTurns();
    if (turns == 0) {
      PrintErr("[there is nothing to forget]\n");
      return;
    }
    const int dropped = (turns + 1) / 2;
    history_.mutable_messages()->DeleteSubrange(begin_.messages_size(), 2 * dropped);
    kept_.clear();
    PrintErr("[forgot the {} oldest of {} questions and answers]\n", dropped, turns);
    if (refused_.has_value()) Ask(std::string(*refused_));
  }

  void TellWaysOn() const {
    if (NumTurns() == 0) {
      PrintErr("[the message alone is too long for the model's context: shorten it]\n");
    } else {
      PrintErr(
          "[the conversation is full: /drop forgets its older half and asks again, /clear forgets "
          "all of it]\n");
    }
  }

  // Once. Passages are recalled from the kept cache of the turn before.
  void TellIfNothingIsKept(const v1::GenerateRequest& turn) {
    if (told_ || !kept_.empty() || turn.has_context() || request_.recall_tokens() == 0) return;
    PrintErr(
        "[--recall-tokens does nothing: the server kept no cache of this conversation "
        "(--context-memory-bytes)]\n");
    told_ = true;
  }

  int NumTurns() const { return (history_.messages_size() - begin_.messages_size()) / 2; }

  Connection* const connection_;
  const v1::GenerateRequest& request_;
  const v1::Chat begin_;
  const PrintOptions& options_;
  v1::Chat history_;                    // begin_, then pairs of question and answer
  std::string kept_;                    // handle of the last turn's cache; "": none
  bool told_ = false;                   // that no cache is kept
  std::optional<std::string> refused_;  // the message that was too long
  int exit_code_ = 0;
};

}  // namespace

int ChatOnce(Connection* connection, v1::GenerateRequest request, const std::string& system,
             const std::string& message, const PrintOptions& options) {
  *request.mutable_chat() = Begin(request, system);
  AddMessage(request.mutable_chat(), "user", message);
  return ExitCodeOf(GenerateAndPrint(connection, request, options, nullptr));
}

int ChatInteractively(Connection* connection, const v1::GenerateRequest& request,
                      const std::string& system, const PrintOptions& options) {
  LineReader reader;
  PrintOptions printing = options;
  printing.interruptible = reader.IsTyped();
  if (reader.IsTyped()) {
    PrintErr(
        "Ctrl-C ends an answer, Ctrl-D or /exit the chat; /clear forgets all of it, /drop its "
        "older half.\n");
  }
  Conversation conversation(connection, request, system, printing);
  for (std::optional<std::string> line; (line = reader.Next()).has_value();) {
    if (!conversation.Take(*line)) break;
  }
  return conversation.exit_code();
}

}  // namespace hydrant
