// The time used in tests of templates: Friday, 2024-07-26 13:45:06.
#ifndef HYDRANT_TESTS_ENGINE_TEXT_JINJA_FIXED_TIME_H_
#define HYDRANT_TESTS_ENGINE_TEXT_JINJA_FIXED_TIME_H_

#include <ctime>

namespace hydrant::jinja {

inline std::tm FixedTime() {
  std::tm now = {};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 13;
  now.tm_min = 45;
  now.tm_sec = 6;
  now.tm_wday = 5;
  now.tm_yday = 207;
  return now;
}

}  // namespace hydrant::jinja

#endif  // HYDRANT_TESTS_ENGINE_TEXT_JINJA_FIXED_TIME_H_
