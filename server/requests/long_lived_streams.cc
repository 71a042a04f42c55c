#include "server/requests/long_lived_streams.h"

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

Refusal ShutdownRefusal() {
  return {absl::UnavailableError("the server is shutting down"), "DRAINING"};
}

}  // namespace

void LongLivedStream::End(const grpc::Status& why) {
  const MutexLock lock(mutex_);
  if (end_.has_value()) return;
  end_ = why;
  if (!writing_) Finish(*end_);
}

void LongLivedStream::OnWriteDone(bool ok) {
  const MutexLock lock(mutex_);
  writing_ = false;
  if (!ok && !end_.has_value()) end_ = grpc::Status::CANCELLED;
  if (end_.has_value()) return Finish(*end_);
  OnWritten();
}

void LongLivedStream::OnDone() { owner_->Remove(shared_from_this()); }

void LongLivedStream::Write(const grpc::ByteBuffer& message) {
  in_flight_ = message;
  writing_ = true;
  StartWrite(&in_flight_);
}

std::optional<Refusal> LongLivedStreams::Add(const std::shared_ptr<LongLivedStream>& stream) {
  const MutexLock lock(mutex_);
  streams_.insert(stream);
  if (ends_) return ShutdownRefusal();
  if (streams_.size() <= capacity_) return std::nullopt;
  return Refusal{absl::ResourceExhaustedError(absl::StrCat("too many streams of ", what_, ": ",
                                                           capacity_, " at a time at most")),
                 "QUEUE_FULL"};
}

void LongLivedStreams::Remove(const std::shared_ptr<LongLivedStream>& stream) {
  const MutexLock lock(mutex_);
  streams_.erase(stream);
}

void LongLivedStreams::EndAll() {
  std::set<std::shared_ptr<LongLivedStream>> streams;
  {
    const MutexLock lock(mutex_);
    ends_ = true;
    streams = streams_;
  }
  for (const std::shared_ptr<LongLivedStream>& stream : streams)
    stream->End(ToGrpcStatus(ShutdownRefusal()));
}

}  // namespace hydrant
