#include "tests/engine/text/tokenizer/golden_lines.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace hydrant::testing {
namespace {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Below(uint64_t n) {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return (z ^ (z >> 31)) % n;
  }

 private:
  uint64_t state_;
};

void Append(uint32_t c, std::string* out) {
  const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 63));
  if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
}

constexpr uint32_t kRanges[][2] = {
    {0x20, 0x7E},     {0x20, 0x7E},     {0x00, 0x1F},       {0xA0, 0x24F},    {0x300, 0x36F},
    {0x370, 0x5FF},   {0x900, 0x97F},   {0x1E00, 0x1EFF},   {0x2000, 0x206F}, {0x3040, 0x30FF},
    {0x4E00, 0x9FFF}, {0xAC00, 0xD7A3}, {0x1F300, 0x1F6FF}, {0x20, 0xD7FF},   {0x10000, 0x10FFFF}};

}  // namespace

std::vector<std::string> LinesOf(const std::vector<std::string>& fragments) {
  SplitMix64 random(20240607);
  std::vector<std::string> lines(10000);
  for (std::string& line : lines) {
    const uint64_t items = 1 + random.Below(12);
    for (uint64_t item = 0; item < items; ++item) {
      const uint64_t kind = random.Below(8);
      if (kind < 5) {
        line += fragments[random.Below(fragments.size())];
      } else if (kind == 5) {
        const auto& range = kRanges[random.Below(std::size(kRanges))];
        const uint64_t count = 1 + random.Below(6);
        for (uint64_t i = 0; i < count; ++i) {
          Append(range[0] + static_cast<uint32_t>(random.Below(range[1] - range[0] + 1)), &line);
        }
      } else if (kind == 6) {
        const uint64_t count = 1 + random.Below(9);
        for (uint64_t i = 0; i < count; ++i) line += static_cast<char>('0' + random.Below(10));
      } else {
        line.append(1 + random.Below(5), ' ');
      }
    }
  }
  return lines;
}

const std::vector<std::string>& GoldenLines() {
  static const std::vector<std::string> lines =
      LinesOf(nlohmann::json::parse(ReadTestFile(std::string(kGoldenFolder) + "fragments.json"))
                  .get<std::vector<std::string>>());
  return lines;
}

uint32_t HashIds(const std::vector<uint32_t>& ids) {
  uint32_t hash = 0x811C9DC5;
  for (const uint32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (id >> shift & 0xFF)) * 0x01000193;
  }
  return hash;
}

std::string ReadTestFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  return stream ? std::move(bytes).str() : "";
}

std::vector<uint32_t> GoldenHashes(const std::string& name) {
  const std::string bytes = ReadTestFile(kGoldenFolder + name + ".hashes");
  std::vector<uint32_t> hashes(bytes.size() / 4);
  std::memcpy(hashes.data(), bytes.data(), hashes.size() * 4);
  return hashes;
}

std::string DataFolder() {
  const char* folder = std::getenv("HYDRANT_DATA_DIR");
  return folder != nullptr ? folder : "../shared/data";
}

std::string SmolLm2Path() {
  const char* path = std::getenv("HYDRANT_SMOLLM2");
  return path != nullptr ? path : ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace hydrant::testing
