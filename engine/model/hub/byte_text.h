// Byte counts and transfer progress as text. Stateless except for the meter, which is not thread
// safe.
#ifndef HYDRANT_ENGINE_MODEL_HUB_BYTE_TEXT_H_
#define HYDRANT_ENGINE_MODEL_HUB_BYTE_TEXT_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace hydrant::hub {

// "512 B", "1.2 MB", "4.96 GB": powers of 1000, as on the hub's pages.
std::string ByteText(int64_t bytes);

// The speed over about ten seconds. Time is passed in.
class TransferMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  TransferMeter(int64_t total_bytes, int64_t present_bytes, Time now);
  void Update(int64_t bytes, Time now);

  // "1.2 of 4.96 GB, 112 MB/s, 34 s left"; without speed before the first bytes.
  std::string Text() const;

 private:
  double Rate() const;  // bytes per second

  const int64_t total_;
  std::deque<std::pair<Time, int64_t>> samples_;  // newest last; never empty
};

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_BYTE_TEXT_H_
