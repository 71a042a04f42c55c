#include "server/apis/control_service.h"

#include <optional>
#include <utility>

#include "kernels/mutex.h"

namespace hydrant {

// One Drain call. Owned by itself until gRPC is done with it (OnDone).
class ControlService::Watch final : public grpc::ServerWriteReactor<v1::DrainProgress> {
 public:
  static std::shared_ptr<Watch> Create() {
    std::shared_ptr<Watch> watch(new Watch());
    watch->self_ = watch;
    return watch;
  }

  // A slow client gets only the latest progress and the last.
  void Notify(const v1::DrainProgress& progress, bool last) {
    const MutexLock lock(mutex_);
    last_ = last_ || last;
    if (!sent_.has_value() || sent_->SerializeAsString() != progress.SerializeAsString())
      next_ = progress;
    if (!writing_) Go();
  }

  void OnWriteDone(bool ok) override {
    const MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) {  // the client has gone
      next_.reset();
      last_ = true;
    }
    Go();
  }
  void OnCancel() override {
    const MutexLock lock(mutex_);
    next_.reset();
    last_ = true;
    if (!writing_) Go();
  }
  void OnDone() override { const std::shared_ptr<Watch> last = std::move(self_); }

 private:
  Watch() = default;

  // REQUIRES: no write in flight.
  void Go() HYDRANT_REQUIRES(mutex_) {
    if (finished_) return;
    if (next_.has_value()) {
      sent_ = std::exchange(next_, std::nullopt);
      writing_ = true;
      StartWrite(&*sent_);
    } else if (last_) {
      finished_ = true;
      Finish(grpc::Status::OK);
    }
  }

  std::shared_ptr<Watch> self_;
  Mutex mutex_;
  std::optional<v1::DrainProgress> next_ HYDRANT_GUARDED_BY(mutex_);
  std::optional<v1::DrainProgress> sent_ HYDRANT_GUARDED_BY(mutex_);  // gRPC's during the write
  bool writing_ HYDRANT_GUARDED_BY(mutex_) = false;
  bool last_ HYDRANT_GUARDED_BY(mutex_) = false;
  bool finished_ HYDRANT_GUARDED_BY(mutex_) = false;
};

ControlService::ControlService(std::function<void()> start,
                               std::function<v1::DrainProgress()> progress)
    : start_(std::move(start)), progress_(std::move(progress)) {}

ControlService::~ControlService() = default;

grpc::ServerWriteReactor<v1::DrainProgress>* ControlService::Drain(
    grpc::CallbackServerContext* /*context*/, const v1::DrainRequest* /*request*/) {
  const std::shared_ptr<Watch> watch = Watch::Create();
  start_();
  const MutexLock lock(mutex_);
  watches_.push_back(watch);
  watch->Notify(progress_(), ended_);
  return watch.get();
}

void ControlService::Notify() { NotifyAll(false); }

void ControlService::End() { NotifyAll(true); }

void ControlService::NotifyAll(bool last) {
  const MutexLock lock(mutex_);
  ended_ = ended_ || last;
  if (watches_.empty()) return;
  const v1::DrainProgress progress = progress_();
  watches_.remove_if([&](const std::weak_ptr<Watch>& weak) {
    const std::shared_ptr<Watch> watch = weak.lock();
    if (watch != nullptr) watch->Notify(progress, last);
    return watch == nullptr;
  });
}

}  // namespace hydrant
