// Parses arbitrary bytes as a safetensors file and reads every byte of every view; the same bytes
// as a config.json.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/model/hf_config.h"
#include "engine/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)hydrant::ParseHfConfig(std::string_view(reinterpret_cast<const char*>(data), size));
  const auto file = hydrant::SafetensorsFile::Parse({data, size});
  if (!file.ok()) return 0;
  volatile uint8_t sink = 0;
  for (const std::string& name : (*file)->Names()) {
    const auto view = (*file)->Find(name);
    if (!view.ok()) continue;
    for (const uint8_t byte : view->bytes) sink = sink ^ byte;
  }
  return 0;
}
