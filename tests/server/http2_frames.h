// HTTP/2 frames as bytes, for test clients with behaviour that no gRPC client has (RFC 9113,
// RFC 7541).
#ifndef HYDRANT_TESTS_SERVER_HTTP2_FRAMES_H_
#define HYDRANT_TESTS_SERVER_HTTP2_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace hydrant::http2 {

inline constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kPing = 6, kContinuation = 9;
inline constexpr uint8_t kEndHeaders = 4;

inline std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  const auto byte = [](size_t value, int shift) { return static_cast<char>(value >> shift & 255); };
  return std::string{byte(payload.size(), 16), byte(payload.size(), 8),  byte(payload.size(), 0),
                     static_cast<char>(type),  static_cast<char>(flags), byte(stream, 24),
                     byte(stream, 16),         byte(stream, 8),          byte(stream, 0)} +
         payload;
}

// The client preface and an empty SETTINGS frame.
inline std::string Hello() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, ""); }

// A literal header field without indexing; name and value have less than 127 bytes each.
inline std::string Header(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

// The header block of a Generate call.
inline std::string CallHeaders() {
  return Header(":method", "POST") + Header(":scheme", "http") +
         Header(":path", "/hydrant.v1.Hydrant/Generate") + Header(":authority", "localhost") +
         Header("te", "trailers") + Header("content-type", "application/grpc");
}

inline std::string Call(uint32_t stream) {
  return Frame(kHeaders, kEndHeaders, stream, CallHeaders());
}

}  // namespace hydrant::http2

#endif  // HYDRANT_TESTS_SERVER_HTTP2_FRAMES_H_
