#include "tools/load/run/arrivals.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hydrant::load {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kMaxRate = 1e9;

std::optional<double> NumberIn(std::string_view text, double least, double most) {
  double value = 0.0;
  if (!absl::SimpleAtod(absl::string_view(text.data(), text.size()), &value)) return std::nullopt;
  if (!(value >= least && value <= most)) return std::nullopt;
  return value;
}

// "R", or "RxS", or "R-RxS"; without S only as the last piece.
std::optional<RateProfile::Piece> ParsePiece(std::string_view text) {
  RateProfile::Piece piece;
  std::string_view rates = text;
  if (const size_t at = text.find('x'); at != std::string_view::npos) {
    const std::optional<double> seconds = NumberIn(text.substr(at + 1), 1e-3, 1e9);
    if (!seconds.has_value()) return std::nullopt;
    piece.seconds = *seconds;
    rates = text.substr(0, at);
  }
  const size_t dash = rates.find('-', 1);
  const std::optional<double> from = NumberIn(rates.substr(0, dash), 0.0, kMaxRate);
  if (!from.has_value()) return std::nullopt;
  piece.from = piece.to = *from;
  if (dash != std::string_view::npos) {
    const std::optional<double> to = NumberIn(rates.substr(dash + 1), 0.0, kMaxRate);
    if (!to.has_value() || piece.seconds == 0.0) return std::nullopt;
    piece.to = *to;
  }
  return piece;
}

}  // namespace

absl::StatusOr<RateProfile> RateProfile::Parse(std::string_view text) {
  if (text == "inf") return Constant(kNever);
  std::vector<Piece> pieces;
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ',');
  for (const std::string& part : parts) {
    const std::optional<Piece> piece = ParsePiece(part);
    if (!piece.has_value() || (piece->seconds == 0.0 && parts.size() > 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "request-rate: '", part,
          "' is no rate; give one as 5, steps as 2x30,8x30 (rate x seconds), a ramp as "
          "1-10x60, or inf; rates up to 1e9"));
    }
    pieces.push_back(*piece);
  }
  if (pieces.back().to == 0.0 && pieces.size() == 1 && pieces[0].from == 0.0) {
    return absl::InvalidArgumentError("request-rate: 0 sends nothing; above 0");
  }
  return RateProfile(std::move(pieces));
}

double RateProfile::SecondsOfPieces() const {
  double seconds = 0.0;
  for (const Piece& piece : pieces_) seconds += piece.seconds;
  return seconds;
}

// Within a piece the requests are from * t + (to - from) / (2 * seconds) * t^2.
double RateProfile::TimeOf(double requests) const {
  double start = 0.0;
  for (const Piece& piece : pieces_) {
    if (piece.seconds == 0.0) break;
    const double within = (piece.from + piece.to) / 2 * piece.seconds;
    if (requests < within) {
      const double slope = (piece.to - piece.from) / piece.seconds;
      // The numerically stable root for small slopes.
      return start + 2 * requests /
                         (piece.from + std::sqrt(piece.from * piece.from + 2 * slope * requests));
    }
    requests -= within;
    start += piece.seconds;
  }
  const double last = pieces_.back().to;
  return last == 0.0 ? (requests > 0.0 ? kNever : start) : start + requests / last;
}

Arrivals::Arrivals(RateProfile profile, double burstiness, uint64_t seed)
    : profile_(std::move(profile)),
      even_(std::isinf(burstiness)),
      gaps_(even_ ? 1.0 : burstiness, even_ ? 1.0 : 1.0 / burstiness),
      random_(seed) {}

double Arrivals::Next() {
  due_ += even_ ? 1.0 : gaps_(random_);
  return profile_.TimeOf(due_);
}

}  // namespace hydrant::load
