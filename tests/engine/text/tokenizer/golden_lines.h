// The data of the tokenizer tests: 10,000 lines generated as in tests/goldens/tokenizer.py, and its
// committed hashes.
#ifndef HYDRANT_TESTS_ENGINE_TEXT_TOKENIZER_GOLDEN_LINES_H_
#define HYDRANT_TESTS_ENGINE_TEXT_TOKENIZER_GOLDEN_LINES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hydrant::testing {

inline const char* const kGoldenFolder = "tests/data/tokenizer/";

const std::vector<std::string>& GoldenLines();
// The same recipe for other fragments.
std::vector<std::string> LinesOf(const std::vector<std::string>& fragments);
uint32_t HashIds(const std::vector<uint32_t>& ids);  // 32-bit FNV-1a over little-endian ids
std::vector<uint32_t> GoldenHashes(const std::string& name);  // empty if the file is missing
std::string ReadTestFile(const std::string& path);            // "" if it is missing
std::string DataFolder();                                     // of the optional data
std::string SmolLm2Path();

}  // namespace hydrant::testing

#endif  // HYDRANT_TESTS_ENGINE_TEXT_TOKENIZER_GOLDEN_LINES_H_
