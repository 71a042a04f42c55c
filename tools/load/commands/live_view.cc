#include "tools/load/commands/live_view.h"

#include <unistd.h>

#include <algorithm>

#include "fmt/format.h"
#include "tools/load/run/measures.h"

namespace hydrant::load {
namespace {

constexpr double kEvery = 1.0, kEveryOfALog = 10.0;  // seconds
constexpr double kWindow = 10.0;                     // seconds of the moving averages

}  // namespace

LiveView::LiveView(int64_t requests, std::FILE* out)
    : requests_(requests), out_(out), terminal_(out != nullptr && isatty(fileno(out)) != 0) {}

void LiveView::Show(double now, const std::vector<Outcome>& outcomes, int64_t in_flight) {
  if (out_ == nullptr || now < next_) return;
  next_ = now + (terminal_ ? kEvery : kEveryOfALog);
  // Only the newest requests, so that the cost does not grow with the run.
  int64_t tokens = 0, failed = 0;
  std::vector<double> ttfts, gaps;
  const size_t first = outcomes.size() > 5000 ? outcomes.size() - 5000 : 0;
  for (size_t i = first; i < outcomes.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    failed += outcome.ending == Ending::kFailed;
    for (size_t m = outcome.messages.size(); m-- > 0;) {
      const TokenMessage& message = outcome.messages[m];
      if (message.at < now - kWindow) break;
      tokens += message.tokens;
      if (m == 0) ttfts.push_back((message.at - outcome.intended) * 1e3);
      if (m > 0) gaps.push_back((message.at - outcome.messages[m - 1].at) * 1e3);
    }
  }
  const Distribution ttft = Describe(&ttfts), gap = Describe(&gaps);
  const std::string line = fmt::format(
      "{:.0f} s: {} of {} sent, {} in flight, {} failed; {:.0f} tokens/s; TTFT p50 {:.0f} p99 "
      "{:.0f} ms, ITL p50 {:.1f} "
      "p99 {:.1f} ms",
      now, outcomes.size(), requests_, in_flight, failed,
      static_cast<double>(tokens) / std::max(0.1, std::min(now, kWindow)), ttft.p50, ttft.p99,
      gap.p50, gap.p99);
  std::fputs((terminal_ ? "\r\033[K" + line : line + "\n").c_str(), out_);
  std::fflush(out_);
}

void LiveView::End() {
  if (terminal_) std::fputs("\n", out_);
}

}  // namespace hydrant::load
