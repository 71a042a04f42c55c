#include "engine/text/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "engine/text/unicode/utf8.h"

namespace hydrant {
namespace {

constexpr int kAlphabetEnd = 0x100 + 68;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// By code point; -1: not a byte of the alphabet.
constexpr std::array<int16_t, kAlphabetEnd> MakeBytes() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (auto& entry : bytes) entry = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    bytes[StandsForItself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr std::array<int16_t, kAlphabetEnd> kBytes = MakeBytes();

}  // namespace

std::optional<std::string> BytesFromAlphabet(std::string_view entry) {
  std::string bytes;
  while (!entry.empty()) {
    const Utf8Front front = ReadUtf8(entry);
    if (front.kind != Utf8Front::Kind::kCharacter || front.code_point >= kAlphabetEnd) {
      return std::nullopt;
    }
    const int byte = kBytes[front.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    entry.remove_prefix(front.length);
  }
  return bytes;
}

}  // namespace hydrant
