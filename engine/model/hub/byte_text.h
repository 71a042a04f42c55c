// Numbers of bytes for people, and how a transfer goes. Stateless but for the meter, which is not
// thread safe.
#ifndef HYDRANT_ENGINE_MODEL_HUB_BYTE_TEXT_H_
#define HYDRANT_ENGINE_MODEL_HUB_BYTE_TEXT_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace hydrant::hub {

// "512 B", "1.2 MB", "4.96 GB": powers of 1000, as the hub's pages say it.
std::string ByteText(int64_t bytes);

// The speed of the last ten seconds or so. Time is passed in.
class TransferMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  TransferMeter(int64_t total_bytes, int64_t present_bytes, Time now);
  void Update(int64_t bytes, Time now);

  // "1.2 of 4.96 GB, 112 MB/s, 34 s left"; no speed where nothing came yet.
  std::string Text() const;

 private:
  double Rate() const;  // bytes a second

  const int64_t total_;
  std::deque<std::pair<Time, int64_t>> samples_;  // the newest last; never empty
};

}  // namespace hydrant::hub

#endif  // HYDRANT_ENGINE_MODEL_HUB_BYTE_TEXT_H_
