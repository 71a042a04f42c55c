#include "server/startup/model_fetch.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "engine/model/hub/byte_text.h"
#include "engine/model/hub/model_reference.h"
#include "engine/model/hub/pull.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLogInterval{10};

class FetchLog final : public hub::PullListener {
 public:
  explicit FetchLog(std::string model) : model_(std::move(model)) {}

  void OnPlan(const hub::PullPlan& plan) override {
    spdlog::info("{}: {} files, {}, {} of it there; commit {}", model_, plan.num_files,
                 hub::ByteText(plan.total_bytes), hub::ByteText(plan.present_bytes), plan.commit);
    logged_ = Clock::now();
    meter_.emplace(plan.total_bytes, plan.present_bytes, logged_);
  }

  void OnProgress(const std::string& file, int64_t bytes) override {
    const Clock::time_point now = Clock::now();
    meter_->Update(bytes, now);
    if (now - logged_ < kLogInterval) return;
    logged_ = now;
    spdlog::info("{}: {}: {}", model_, meter_->Text(), file);
  }

  void OnNote(const std::string& line) override { spdlog::info("{}: {}", model_, line); }

 private:
  const std::string model_;
  Clock::time_point logged_;
  std::optional<hub::TransferMeter> meter_;  // set by the plan
};

}  // namespace

absl::StatusOr<DaemonOptions> WithLocalModel(DaemonOptions options) {
  if (!hub::IsHubModel(options.model_path)) {
    options.model_path = ModelFileOf(options.model_path);
    return options;
  }
  HYDRANT_ASSIGN_OR_RETURN(const hub::ModelReference reference,
                           hub::ParseModelReference(options.model_path));
  FetchLog log(options.model_path);
  HYDRANT_ASSIGN_OR_RETURN(options.model_path, hub::ResolveModelPath(options.model_path, &log));
  if (options.served_model_name.empty()) options.served_model_name = reference.repo;
  spdlog::info("model files: {}", options.model_path);
  return options;
}

}  // namespace hydrant
