// The sanitizer of this build, for tests that a sanitizer makes too slow or changes.
#ifndef HYDRANT_TESTS_SANITIZED_H_
#define HYDRANT_TESTS_SANITIZED_H_

namespace hydrant {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SANITIZED_H_
