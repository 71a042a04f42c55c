#include "server/startup/warm_up.h"

#include <future>
#include <memory>
#include <utility>

namespace hydrant {
namespace {

class Outcome final : public EventReceiver {
 public:
  std::future<absl::Status> Future() { return promise_.get_future(); }

  void OnEvent(Event event) override {
    if (std::holds_alternative<Finished>(event.what)) promise_.set_value(absl::OkStatus());
    if (const auto* failed = std::get_if<Failed>(&event.what)) promise_.set_value(failed->status);
  }
  void OnStepEnd(const std::shared_ptr<PendingWrites>&) override {}

 private:
  std::promise<absl::Status> promise_;
};

}  // namespace

absl::Status WarmUp(ServingLoop* loop, EventRouter* router, RequestHandle handle,
                    const Tokenizer& tokenizer) {
  Request request;
  request.request_id = "warm-up";
  request.prompt = {tokenizer.bos_id() >= 0 ? static_cast<TokenId>(tokenizer.bos_id())
                                            : TokenId{0}};
  request.sampling.temperature = 0;
  request.stopping.max_tokens = 1;
  const auto outcome = std::make_shared<Outcome>();
  std::future<absl::Status> future = outcome->Future();
  router->Add(handle, outcome);
  const auto submitted = loop->Submit(handle, std::move(request));
  if (const auto* failed = std::get_if<Failed>(&submitted)) {
    router->Remove(handle);
    return failed->status;
  }
  return future.get();
}

}  // namespace hydrant
