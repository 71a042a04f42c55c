// Server streams without an end of their own: load reports, events. They end when the client or the
// server ends them. The server tracks them all, because an open stream would block shutdown, and
// limits their number.
#ifndef HYDRANT_SERVER_REQUESTS_LONG_LIVED_STREAMS_H_
#define HYDRANT_SERVER_REQUESTS_LONG_LIVED_STREAMS_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kernels/mutex.h"
#include "server/wire/status_details.h"

namespace hydrant {

class LongLivedStreams;

// One such stream, with one write in flight at a time. Owned by its LongLivedStreams until gRPC is
// done with it.
class LongLivedStream : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                        public std::enable_shared_from_this<LongLivedStream> {
 public:
  explicit LongLivedStream(LongLivedStreams* owner) : owner_(owner) {}

  // Idempotent.
  void End(const grpc::Status& why);

  void OnWriteDone(bool ok) final;
  void OnCancel() final { End(grpc::Status::CANCELLED); }
  void OnDone() override;

 protected:
  // Called when a write is done and the stream goes on.
  virtual void OnWritten() HYDRANT_REQUIRES(mutex_) = 0;
  bool CanWrite() const HYDRANT_REQUIRES(mutex_) { return !writing_ && !end_.has_value(); }
  // REQUIRES: CanWrite()
  void Write(const grpc::ByteBuffer& message) HYDRANT_REQUIRES(mutex_);

  Mutex& mutex() HYDRANT_RETURN_CAPABILITY(mutex_) { return mutex_; }

 private:
  LongLivedStreams* const owner_;

  Mutex mutex_;
  grpc::ByteBuffer in_flight_ HYDRANT_GUARDED_BY(mutex_);
  bool writing_ HYDRANT_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ HYDRANT_GUARDED_BY(mutex_);
};

// Thread safe.
class LongLivedStreams {
 public:
  // `what`: the kind of stream, for error messages.
  LongLivedStreams(size_t capacity, std::string what)
      : capacity_(capacity), what_(std::move(what)) {}

  // Stores the stream, even if it is refused. Returns a refusal beyond the limit or
  // during shutdown.
  std::optional<Refusal> Add(const std::shared_ptr<LongLivedStream>& stream);
  void Remove(const std::shared_ptr<LongLivedStream>& stream);
  // Ends all streams and refuses new ones.
  void EndAll();

 private:
  const size_t capacity_;
  const std::string what_;

  Mutex mutex_;
  std::set<std::shared_ptr<LongLivedStream>> streams_ HYDRANT_GUARDED_BY(mutex_);
  bool ends_ HYDRANT_GUARDED_BY(mutex_) = false;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_REQUESTS_LONG_LIVED_STREAMS_H_
