// The choice of a library's algorithm for a matrix product: the fastest of several timed once, kept
// in a file for later processes. Plain C++, independent of CUDA. Not thread-safe.
//
// The file is text: a line that names the format, then one line per choice with tab-separated
// fields and a checksum last. Choices for other machines and library versions stay in it.
#ifndef HYDRANT_KERNELS_CUDA_MATMUL_CHOICES_H_
#define HYDRANT_KERNELS_CUDA_MATMUL_CHOICES_H_

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

namespace hydrant::cuda {

// y [rows, outputs] = x [rows, inner] * W^T [inner, outputs].
struct ProductShape {
  int rows = 0;
  int outputs = 0;
  int inner = 0;
  bool bf16 = false;         // weight and x; else fp32
  bool bf16_result = false;  // else fp32
  bool accumulate = false;
  auto Key() const { return std::tie(rows, outputs, inner, bf16, bf16_result, accumulate); }
  bool operator<(const ProductShape& other) const { return Key() < other.Key(); }
};

// The library's description of an algorithm, portable between processes with the same library
// version (cublasLtMatmulAlgo_t).
using AlgorithmWords = std::array<uint64_t, 8>;

// Products of similar row counts share a choice: exact up to 8 rows, then four buckets per power of
// two, as decode steps are padded (engine/run/step/graph_shape.h). REQUIRES: rows >= 1
inline int RowsBucket(int rows) {
  const int step = std::max(static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows))) / 8, 1);
  return (rows + step - 1) / step * step;
}

inline float MedianOf(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The candidate with the least median time. Within kLeastGain the library's order decides: a
// later candidate must beat the first one by more than that. A candidate without times has
// failed; -1: all have.
inline constexpr float kLeastGain = 0.02f;
inline int FastestOf(std::span<const std::vector<float>> times) {
  int first = -1, best = -1;
  float first_time = 0.0f, best_time = 0.0f;
  for (int i = 0; i < static_cast<int>(times.size()); ++i) {
    if (times[i].empty()) continue;
    const float time = MedianOf(times[i]);
    if (first < 0) first = best = i, first_time = best_time = time;
    if (time < best_time) best = i, best_time = time;
  }
  return best_time < first_time * (1.0f - kLeastGain) ? best : first;
}

// Scope of a choice: it is not valid on another GPU or with another library version.
struct ChoiceOwner {
  std::string card;          // "NVIDIA H200"
  uint64_t library_version;  // cublasLtGetVersion()
  int driver_version;        // cudaDriverGetVersion()
  auto Key() const { return std::tie(card, library_version, driver_version); }
  bool operator<(const ChoiceOwner& other) const { return Key() < other.Key(); }
  bool operator==(const ChoiceOwner& other) const { return Key() == other.Key(); }
};

using ChoiceKey = std::pair<ChoiceOwner, ProductShape>;
using ChoiceMap = std::map<ChoiceKey, AlgorithmWords>;

namespace choices {

inline constexpr std::string_view kFirstLine = "hydrant matrix products 1";
inline constexpr size_t kMaxChoices = 20'000;

// FNV-1a hash.
inline uint64_t Checksum(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}
inline std::string Hex(uint64_t value) {
  std::array<char, 16> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return std::string(digits.data(), end);
}
template <typename T>
bool ParseNumber(std::string_view text, int base, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, base);
  return error == std::errc() && end == text.data() + text.size();
}
inline std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Card names contain no tab or line break.
inline std::string FormatLine(const ChoiceKey& key, const AlgorithmWords& algorithm) {
  const auto& [owner, shape] = key;
  std::string line = owner.card;
  const auto add = [&line](const std::string& field) { line.append("\t").append(field); };
  add(std::to_string(owner.library_version));
  add(std::to_string(owner.driver_version));
  for (const int number : {shape.rows, shape.outputs, shape.inner, int{shape.bf16},
                           int{shape.bf16_result}, int{shape.accumulate}})
    add(std::to_string(number));
  for (const uint64_t word : algorithm) add(Hex(word));
  add(Hex(Checksum(line)));
  return line;
}

inline std::optional<std::pair<ChoiceKey, AlgorithmWords>> ParseLine(std::string_view line) {
  const std::vector<std::string_view> fields = Split(line, '\t');
  AlgorithmWords algorithm;
  if (fields.size() != 9 + algorithm.size() + 1) return std::nullopt;
  uint64_t checksum = 0;
  const std::string_view summed = line.substr(0, line.rfind('\t'));
  if (!ParseNumber(fields.back(), 16, &checksum) || checksum != Checksum(summed))
    return std::nullopt;
  ChoiceOwner owner = {std::string(fields[0]), 0, 0};
  std::array<int, 6> numbers = {};
  bool ok = ParseNumber(fields[1], 10, &owner.library_version) &&
            ParseNumber(fields[2], 10, &owner.driver_version);
  for (size_t i = 0; i < numbers.size(); ++i)
    ok = ok && ParseNumber(fields[3 + i], 10, &numbers[i]);
  for (size_t i = 0; i < algorithm.size(); ++i)
    ok = ok && ParseNumber(fields[9 + i], 16, &algorithm[i]);
  if (!ok) return std::nullopt;
  const ProductShape shape = {numbers[0],      numbers[1],      numbers[2],
                              numbers[3] != 0, numbers[4] != 0, numbers[5] != 0};
  return std::pair(ChoiceKey(std::move(owner), shape), algorithm);
}

}  // namespace choices

inline std::string FormatChoices(const ChoiceMap& map) {
  std::string text = std::string(choices::kFirstLine) + "\n";
  for (const auto& [key, algorithm] : map) text += choices::FormatLine(key, algorithm) + "\n";
  return text;
}

// Returns nothing if any line is damaged.
inline std::optional<ChoiceMap> ParseChoices(std::string_view text) {
  if (text.empty() || text.back() != '\n') return std::nullopt;
  text.remove_suffix(1);
  std::vector<std::string_view> lines = choices::Split(text, '\n');
  if (lines.front() != choices::kFirstLine || lines.size() > choices::kMaxChoices + 1)
    return std::nullopt;
  ChoiceMap map;
  for (size_t i = 1; i < lines.size(); ++i) {
    auto choice = choices::ParseLine(lines[i]);
    if (!choice.has_value()) return std::nullopt;
    map.insert(*std::move(choice));
  }
  return map;
}

// Choices for one machine and library, from the file and from this process. A result of Find()
// never changes while the process runs, even if other processes write to the file.
class ChoiceFile {
 public:
  // Empty path: choices last for this process only.
  ChoiceFile(std::string path, ChoiceOwner owner)
      : path_(std::move(path)), owner_(std::move(owner)) {
    if (path_.empty()) return;
    const std::optional<std::string> text = ReadFile();
    if (!text.has_value()) return;
    const std::optional<ChoiceMap> map = ParseChoices(*text);
    damaged_ = !map.has_value();
    if (damaged_) return;
    for (const auto& [key, algorithm] : *map) {
      if (key.first == owner_) own_.emplace(key.second, algorithm);
    }
    found_ = own_.size();
  }

  const std::string& path() const { return path_; }
  bool damaged() const { return damaged_; }  // ignored as a whole; Keep() rewrites it
  size_t found() const { return found_; }    // choices in the file for this owner

  const AlgorithmWords* Find(const ProductShape& shape) const {
    const auto found = own_.find(shape);
    return found == own_.end() ? nullptr : &found->second;
  }

  // Adds a choice, in the file too, merged with other processes' writes. Returns false if the file
  // cannot be written; the choice then lasts for this process only. REQUIRES: Find(shape) is null.
  bool Keep(const ProductShape& shape, const AlgorithmWords& algorithm) {
    own_.emplace(shape, algorithm);
    if (path_.empty()) return true;
    ChoiceMap all;
    if (const std::optional<std::string> text = ReadFile(); text.has_value())
      all = ParseChoices(*text).value_or(ChoiceMap());
    if (all.size() + own_.size() > choices::kMaxChoices) all.clear();
    for (const auto& [own_shape, own] : own_) all[ChoiceKey(owner_, own_shape)] = own;
    return WriteFile(FormatChoices(all));
  }

 private:
  std::optional<std::string> ReadFile() const {
    std::ifstream in(path_, std::ios::binary);
    if (!in) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  // Atomic for readers. Of two concurrent writers the last one wins.
  bool WriteFile(const std::string& text) const {
    std::error_code error;
    const std::filesystem::path path = path_;
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
    std::string part = path_ + ".XXXXXX";
    const int file = mkstemp(part.data());
    if (file < 0) return false;
    std::ofstream out(part, std::ios::binary | std::ios::trunc);
    close(file);
    out << text;
    out.close();
    if (out) std::filesystem::rename(part, path, error);
    if (out && !error) return true;
    std::filesystem::remove(part, error);
    return false;
  }

  std::string path_;
  ChoiceOwner owner_;
  bool damaged_ = false;
  size_t found_ = 0;
  std::map<ProductShape, AlgorithmWords> own_;
};

// HYDRANT_MATMUL_CHOICES: "off" uses the library's first choice, untimed; otherwise the path of the
// file. Default: $XDG_CACHE_HOME/hydrant/matmul-choices.tsv or ~/.cache/hydrant/matmul-choices.tsv.
// Empty path: no folder is known, as for users without a home. `variable`: looks up the
// environment, null for unset.
struct ChoiceSettings {
  bool timed = true;
  std::string path;
};
inline ChoiceSettings ChoiceSettingsOf(const auto& variable) {
  const auto get = [&](const char* name) {
    const char* value = variable(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string asked = get("HYDRANT_MATMUL_CHOICES"); !asked.empty())
    return asked == "off" ? ChoiceSettings{false, ""} : ChoiceSettings{true, asked};
  constexpr const char* kFile = "/hydrant/matmul-choices.tsv";
  if (const std::string cache = get("XDG_CACHE_HOME"); !cache.empty()) return {true, cache + kFile};
  const std::string home = get("HOME");
  return {true, home.empty() || home == "/" ? "" : home + "/.cache" + kFile};
}

}  // namespace hydrant::cuda

#endif  // HYDRANT_KERNELS_CUDA_MATMUL_CHOICES_H_
