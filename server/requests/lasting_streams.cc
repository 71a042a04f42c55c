#include "server/requests/lasting_streams.h"

#include "absl/strings/str_cat.h"

namespace hydrant {
namespace {

Refusal Leaving() { return {absl::UnavailableError("the server is shutting down"), "DRAINING"}; }

}  // namespace

void LastingStream::End(const grpc::Status& why) {
  const MutexLock lock(mutex_);
  if (end_.has_value()) return;
  end_ = why;
  if (!writing_) Finish(*end_);
}

void LastingStream::OnWriteDone(bool ok) {
  const MutexLock lock(mutex_);
  writing_ = false;
  if (!ok && !end_.has_value()) end_ = grpc::Status::CANCELLED;
  if (end_.has_value()) return Finish(*end_);
  OnWritten();
}

void LastingStream::OnDone() { owner_->Remove(shared_from_this()); }

void LastingStream::Write(const grpc::ByteBuffer& message) {
  in_flight_ = message;
  writing_ = true;
  StartWrite(&in_flight_);
}

std::optional<Refusal> LastingStreams::Add(const std::shared_ptr<LastingStream>& stream) {
  const MutexLock lock(mutex_);
  streams_.insert(stream);
  if (ends_) return Leaving();
  if (streams_.size() <= most_) return std::nullopt;
  return Refusal{absl::ResourceExhaustedError(absl::StrCat("too many streams of ", what_, ": ",
                                                           most_, " at a time at most")),
                 "QUEUE_FULL"};
}

void LastingStreams::Remove(const std::shared_ptr<LastingStream>& stream) {
  const MutexLock lock(mutex_);
  streams_.erase(stream);
}

void LastingStreams::EndAll() {
  std::set<std::shared_ptr<LastingStream>> streams;
  {
    const MutexLock lock(mutex_);
    ends_ = true;
    streams = streams_;
  }
  for (const std::shared_ptr<LastingStream>& stream : streams) stream->End(ToGrpcStatus(Leaving()));
}

}  // namespace hydrant
