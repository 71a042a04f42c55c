// One subscriber to prefix block events (scheduler/kv_events.h), in the messages of smg's
// engines. A subscriber that is late or too slow gets a snapshot of the cache instead of the
// events it missed.
#ifndef HYDRANT_SERVER_APIS_KV_EVENT_STREAM_H_
#define HYDRANT_SERVER_APIS_KV_EVENT_STREAM_H_

#include <grpcpp/alarm.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "kernels/mutex.h"
#include "scheduler/kv_events.h"
#include "server/requests/long_lived_streams.h"
#include "smg/grpc/common/common.pb.h"

namespace hydrant {

smg::grpc::common::KvEventBatch ToWireBatch(const KvEventBatch& batch);
// The snapshot in chunks, with consecutive sequence numbers up to the snapshot's.
std::deque<smg::grpc::common::KvEventBatch> ToWireSnapshot(const KvEvents::Snapshot& snapshot,
                                                           double unix_seconds);

class KvEventStream final : public LongLivedStream {
 public:
  // Borrowed: `events` outlives it.
  KvEventStream(LongLivedStreams* owner, KvEvents* events)
      : LongLivedStream(owner), events_(events) {}

  // `last`: the number of the last batch known to the subscriber; 0: none.
  void Begin(uint64_t last);

  void OnDone() override;

 private:
  void OnWritten() override HYDRANT_REQUIRES(mutex()) { Advance(); }
  void Wake();
  void Advance() HYDRANT_REQUIRES(mutex());

  KvEvents* const events_;
  uint64_t listener_ = 0;  // 0: Begin() was not called

  uint64_t next_ HYDRANT_GUARDED_BY(mutex()) = 0;  // number of the next batch to send
  // Chunks to send before it.
  std::deque<smg::grpc::common::KvEventBatch> snapshot_ HYDRANT_GUARDED_BY(mutex());
  std::optional<grpc::Alarm> alarm_ HYDRANT_GUARDED_BY(mutex());
  bool wakes_ HYDRANT_GUARDED_BY(mutex()) = false;  // alarm_ is set
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_KV_EVENT_STREAM_H_
