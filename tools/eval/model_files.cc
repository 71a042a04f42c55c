#include "tools/eval/model_files.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "engine/model/hub/byte_text.h"
#include "engine/model/hub/pull.h"
#include "kernels/standard_streams.h"
#include "tools/eval/command_line.h"

namespace hydrant::eval {
namespace {

// Prints the progress of a download, a line every ten seconds.
class FetchProgress final : public hub::PullListener {
 public:
  void OnPlan(const hub::PullPlan& plan) override {
    meter_.emplace(plan.total_bytes, plan.present_bytes, shown_);
  }
  void OnProgress(const std::string& file, int64_t bytes) override {
    const auto now = std::chrono::steady_clock::now();
    meter_->Update(bytes, now);
    if (now - shown_ < std::chrono::seconds(10)) return;
    shown_ = now;
    PrintErr("{}: {}\n", meter_->Text(), file);
  }
  void OnNote(const std::string& line) override { PrintErr("{}\n", line); }
  bool Cancelled() override { return Interrupted(); }

 private:
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
  std::optional<hub::TransferMeter> meter_;  // set by the plan
};

}  // namespace

std::vector<std::string> ReadTexts(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    if (!file) Fail(fmt::format("--text: cannot read {}", path), kExitUsage);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

std::string PathOfModel(const std::string& model) {
  FetchProgress progress;
  const auto path = hub::ResolveModelPath(model, &progress);
  if (!path.ok()) Fail("--model: " + std::string(path.status().message()));
  return *path;
}

ModelFiles OpenModelFiles(const std::string& path) {
  auto source = OpenModel(path, LoadFormat::kAuto);
  if (!source.ok()) Fail(std::string(source.status().message()));
  auto tokenizer = (*source)->gguf() != nullptr ? TokenizerFromGguf(*(*source)->gguf())
                                                : TokenizerFromPath((*source)->folder());
  if (!tokenizer.ok()) Fail("--model: " + std::string(tokenizer.status().message()));
  return {*std::move(source), *std::move(tokenizer)};
}

}  // namespace hydrant::eval
