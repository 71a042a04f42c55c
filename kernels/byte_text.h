// Formats memory sizes for people, in the units of flags. Stateless.
#ifndef HYDRANT_KERNELS_BYTE_TEXT_H_
#define HYDRANT_KERNELS_BYTE_TEXT_H_

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace hydrant {

// Such as "512 B", "1.5 KiB", "48.0 MiB".
inline std::string FormatByteSize(uint64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.*f %s", unit == 0 ? 0 : 1, value, kUnits[unit]);
  return text.data();
}

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_BYTE_TEXT_H_
