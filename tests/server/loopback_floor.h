// The latency of bare sockets on this machine, a lower bound for the server's latency.
#ifndef HYDRANT_TESTS_SERVER_LOOPBACK_FLOOR_H_
#define HYDRANT_TESTS_SERVER_LOOPBACK_FLOOR_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace hydrant {

// A thread steps every `step_us` and wakes a second one, which sends one message of a delta's size
// for each stream, round-robin over the connections with a system call each; the calling thread
// reads them as Http2Streams does, after `before_reading` (which may set its priority). No HTTP/2,
// no protobuf, no queue. Returns each message's time from the end of its step to its arrival in
// microseconds. Aborts without sockets, which is an error of the benchmark.
std::vector<int64_t> MeasureLoopbackFloor(int streams, int connections, int steps, int64_t step_us,
                                          const std::function<void()>& before_reading);

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_LOOPBACK_FLOOR_H_
