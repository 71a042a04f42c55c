// The main function of a fuzzer that is built without libFuzzer: calls LLVMFuzzerTestOneInput with
// each file of the given folders, and with copies in which bytes are changed, left out or repeated.
// scripts/test --long runs the same fuzzers with libFuzzer and sanitizers.
//
//   HYDRANT_FUZZ_SEED=N    another seed than 1
//   HYDRANT_FUZZ_INPUT=N   runs only the N-th input
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr uint64_t kCopies = 20'000;  // of all files together

char at_work[256];  // the seed and the input, for the signal handler

void SayInput(int signal) {
  const size_t length = std::find(at_work, at_work + sizeof(at_work), '\0') - at_work;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, at_work, length);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

std::vector<std::string> ReadFolders(const std::vector<std::string>& folders) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& folder : folders) {
    std::error_code error;  // a missing folder has no files
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
      paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const auto& path : paths) {
    std::ifstream stream(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return files;
}

std::string Changed(std::string text, std::mt19937_64* random) {
  const auto below = [random](size_t n) { return static_cast<size_t>((*random)() % n); };
  for (size_t edits = 1 + below(4); edits > 0 && !text.empty(); --edits) {
    const size_t at = below(text.size()), length = 1 + below(std::min<size_t>(text.size(), 32));
    switch (below(4)) {
      case 0:
        text[at] = static_cast<char>(below(256));
        break;
      case 1:
        text[at] = static_cast<char>(text[at] ^ 1 << below(8));
        break;
      case 2:
        text.erase(at, length);
        break;
      default:
        text.insert(at, text.substr(below(text.size()), length));
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> files = ReadFolders({argv + 1, argv + argc});
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s FOLDER...: there is no file in them\n", argv[0]);
    return 1;
  }
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, SayInput);
  const uint64_t seed = FromEnvironment("HYDRANT_FUZZ_SEED", 1);
  const uint64_t only = FromEnvironment("HYDRANT_FUZZ_INPUT", UINT64_MAX);
  std::printf("seed %lu, %zu files\n", static_cast<unsigned long>(seed), files.size());
  for (uint64_t i = 0; i < files.size() + kCopies; ++i) {
    if (only != UINT64_MAX && i != only) continue;
    std::mt19937_64 random(seed * 1'000'003 + i);
    const std::string& file = files[i < files.size() ? i : random() % files.size()];
    const std::string input = i < files.size() ? file : Changed(file, &random);
    std::snprintf(at_work, sizeof(at_work),
                  "this input fails: HYDRANT_FUZZ_SEED=%lu HYDRANT_FUZZ_INPUT=%lu\n",
                  static_cast<unsigned long>(seed), static_cast<unsigned long>(i));
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  }
  return 0;
}
