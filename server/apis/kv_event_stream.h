// One subscriber of what becomes of prefix blocks (scheduler/kv_events.h), in the messages of smg's
// engines. One that is slower than they come, or that comes late, is sent what is there instead of
// what it has missed.
#ifndef HYDRANT_SERVER_APIS_KV_EVENT_STREAM_H_
#define HYDRANT_SERVER_APIS_KV_EVENT_STREAM_H_

#include <grpcpp/alarm.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "scheduler/kv_events.h"
#include "server/requests/lasting_streams.h"
#include "smg/grpc/common/common.pb.h"

namespace hydrant {

smg::grpc::common::KvEventBatch ToWireBatch(const KvEventBatch& batch);
// Its chunks: numbers follow each other up to the snapshot's.
std::deque<smg::grpc::common::KvEventBatch> ToWireSnapshot(const KvEvents::Snapshot& snapshot,
                                                           double unix_seconds);

class KvEventStream final : public LastingStream {
 public:
  // Borrowed: `events` outlives it.
  KvEventStream(LastingStreams* owner, KvEvents* events) : LastingStream(owner), events_(events) {}

  // `last`: the number of the last batch that the subscriber knows; 0: none.
  void Begin(uint64_t last);

  void OnDone() override;

 private:
  void OnWritten() override { Advance(); }
  void Wake();
  // REQUIRES: mutex() held.
  void Advance();

  KvEvents* const events_;
  uint64_t listener_ = 0;  // 0: Begin() was not called

  // Guarded by mutex().
  uint64_t next_ = 0;                                     // the batch after what was sent
  std::deque<smg::grpc::common::KvEventBatch> snapshot_;  // to be sent before it
  std::optional<grpc::Alarm> alarm_;
  bool wakes_ = false;  // alarm_ is about to ring
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_KV_EVENT_STREAM_H_
