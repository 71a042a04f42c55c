#include "server/startup/startup_requests.h"

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace hydrant {
namespace {

// Gathers the events of one request.
class Answer final : public EventReceiver {
 public:
  std::future<absl::StatusOr<StartupAnswer>> Future() { return promise_.get_future(); }

  void OnEvent(Event event) override {
    if (auto* delta = std::get_if<Delta>(&event.what)) {
      if (delta->token_id) answer_.tokens.push_back(*delta->token_id);
      if (delta->logprobs) answer_.logprobs.push_back(**delta->logprobs);
    }
    if (auto* prompt = std::get_if<PromptLogprobs>(&event.what))
      answer_.prompt_logprobs = std::move(prompt->tokens);
    if (std::holds_alternative<Finished>(event.what)) promise_.set_value(std::move(answer_));
    if (const auto* failed = std::get_if<Failed>(&event.what)) promise_.set_value(failed->status);
  }
  void OnStepEnd(const std::shared_ptr<PendingWrites>&) override {}

 private:
  StartupAnswer answer_;
  std::promise<absl::StatusOr<StartupAnswer>> promise_;
};

}  // namespace

absl::StatusOr<std::vector<StartupAnswer>> StartupRequests::Run(
    std::vector<Request> requests) const {
  std::vector<std::future<absl::StatusOr<StartupAnswer>>> ends;
  absl::Status status;
  for (Request& request : requests) {
    const RequestHandle handle = next_handle_();
    request.request_id = "startup-" + std::to_string(handle);
    const auto answer = std::make_shared<Answer>();
    std::future<absl::StatusOr<StartupAnswer>> end = answer->Future();
    router_->Add(handle, answer);
    const auto submitted = loop_->Submit(handle, std::move(request));
    if (const auto* failed = std::get_if<Failed>(&submitted)) {
      router_->Remove(handle);
      status.Update(failed->status);
      continue;
    }
    ends.push_back(std::move(end));
  }
  std::vector<StartupAnswer> answers;
  for (auto& end : ends) {
    absl::StatusOr<StartupAnswer> answer = end.get();
    status.Update(answer.status());
    if (answer.ok()) answers.push_back(*std::move(answer));
  }
  if (!status.ok()) return status;
  return answers;
}

}  // namespace hydrant
