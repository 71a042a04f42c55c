#include "engine/tokenizer/byte_alphabet.h"

#include <array>

#include "engine/tokenizer/utf8.h"

namespace hydrant {
namespace {

constexpr int kAlphabetEnd = 0x100 + 68;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint16_t, 256> from_byte{};
  std::array<int16_t, kAlphabetEnd> to_byte{};
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (auto& entry : alphabet.to_byte) entry = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = StandsForItself(byte) ? byte : next++;
    alphabet.from_byte[byte] = static_cast<uint16_t>(code_point);
    alphabet.to_byte[code_point] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

char32_t AlphabetFromByte(uint8_t byte) { return kAlphabet.from_byte[byte]; }

std::optional<std::string> BytesFromAlphabet(std::string_view entry) {
  std::string bytes;
  while (!entry.empty()) {
    const Utf8Front front = ReadUtf8(entry);
    if (front.kind != Utf8Front::Kind::kCharacter || front.code_point >= kAlphabetEnd) {
      return std::nullopt;
    }
    const int byte = kAlphabet.to_byte[front.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    entry.remove_prefix(front.length);
  }
  return bytes;
}

}  // namespace hydrant
