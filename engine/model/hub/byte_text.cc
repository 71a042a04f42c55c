#include "engine/model/hub/byte_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace hydrant::hub {
namespace {

constexpr std::chrono::seconds kWindow{10};
constexpr std::chrono::milliseconds kSampleInterval{100};

std::string TimeText(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 120) return fmt::format("{} s", whole);
  if (whole < 2 * 3600) return fmt::format("{} min", (whole + 59) / 60);
  return fmt::format("{} h", (whole + 3599) / 3600);
}

}  // namespace

std::string ByteText(int64_t bytes) {
  constexpr std::array kUnits{"kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1000.0;
  size_t unit = 0;
  // 999.5 would be shown as 1e+03.
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000.0;
  return fmt::format("{:.3g} {}", value, kUnits[unit]);
}

TransferMeter::TransferMeter(int64_t total_bytes, int64_t present_bytes, Time now)
    : total_(total_bytes), samples_{{now, present_bytes}} {}

void TransferMeter::Update(int64_t bytes, Time now) {
  // A download that restarts reduces the byte count; the speed is measured from there.
  if (bytes < samples_.back().second) samples_.clear();
  if (samples_.size() > 1 && now - samples_[samples_.size() - 2].first < kSampleInterval)
    samples_.pop_back();
  samples_.emplace_back(now, bytes);
  while (samples_.size() > 2 && now - samples_[1].first >= kWindow) samples_.pop_front();
}

double TransferMeter::Rate() const {
  const double seconds =
      std::chrono::duration<double>(samples_.back().first - samples_.front().first).count();
  const auto bytes = static_cast<double>(samples_.back().second - samples_.front().second);
  return seconds > 0.0 ? bytes / seconds : 0.0;
}

std::string TransferMeter::Text() const {
  const int64_t done = samples_.back().second;
  const std::string how_far = fmt::format("{} of {}", ByteText(done), ByteText(total_));
  const double rate = Rate();
  if (rate < 1.0) return how_far;
  const double left = static_cast<double>(std::max<int64_t>(total_ - done, 0)) / rate;
  return fmt::format("{}, {}/s, {} left", how_far, ByteText(static_cast<int64_t>(rate)),
                     TimeText(left));
}

}  // namespace hydrant::hub
