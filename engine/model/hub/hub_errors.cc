#include "engine/model/hub/hub_errors.h"

#include <fmt/format.h>

#include "engine/model/text.h"

namespace hydrant::hub {
namespace {

std::string PageOf(const AskedFor& asked) {
  return asked.settings.endpoint + "/" + asked.reference.repo;
}

absl::Status Gated(const AskedFor& asked) {
  if (!asked.settings.token.empty()) {
    return absl::PermissionDeniedError(fmt::format(
        "{} is gated, and the account of the token in use has no access: ask for it at {}",
        asked.reference.repo, PageOf(asked)));
  }
  return absl::PermissionDeniedError(fmt::format(
      "{} is gated: accept its terms at {}, then set HF_TOKEN to a token of that account",
      asked.reference.repo, PageOf(asked)));
}

absl::Status NoRepository(const AskedFor& asked) {
  return absl::NotFoundError(fmt::format(
      "{} has no model {}, or a private one{}", asked.settings.endpoint, asked.reference.repo,
      asked.settings.token.empty() ? ": check the name, or set HF_TOKEN"
                                   : " that the account of the token in use may not read"));
}

absl::Status Forbidden(const AskedFor& asked, const std::string& why) {
  return absl::PermissionDeniedError(fmt::format(
      "{} may not be read{}{}", asked.reference.repo, why.empty() ? "" : ": " + Quoted(why),
      asked.settings.token.empty() ? "; set HF_TOKEN to a token that may read it"
                                   : "; the token in use may not read it"));
}

absl::Status TooMany(const HttpHead& head, const AskedFor& asked) {
  return absl::ResourceExhaustedError(fmt::format(
      "{} limits requests (HTTP 429){}{}", asked.settings.endpoint,
      head.retry_after.has_value() ? fmt::format(" for {} s", head.retry_after->count()) : "",
      asked.settings.token.empty() ? "; with a token in HF_TOKEN the limit is higher" : ""));
}

}  // namespace

absl::Status RefusalOf(const HttpHead& head, const AskedFor& asked) {
  const std::string code = head.Header("x-error-code");
  const std::string why = head.Header("x-error-message");
  if (code == "GatedRepo") return Gated(asked);
  if (code == "RevisionNotFound") {
    return absl::NotFoundError(fmt::format("{} has no revision {}; {}/tree/main lists them",
                                           asked.reference.repo, Quoted(asked.reference.revision),
                                           PageOf(asked)));
  }
  if (code == "EntryNotFound") {
    return absl::NotFoundError(
        fmt::format("{} has no {}", asked.reference.repo, Quoted(asked.path)));
  }
  if (head.status == 401 && !asked.settings.token.empty() && code != "RepoNotFound") {
    return absl::PermissionDeniedError(
        fmt::format("{} does not accept the token in use: set HF_TOKEN to a valid one, or unset it",
                    asked.settings.endpoint));
  }
  // Without a token the hub answers 401 for missing and for private repositories.
  if (code == "RepoNotFound" || head.status == 401) return NoRepository(asked);
  if (head.status == 403) return Forbidden(asked, why);
  if (head.status == 429) return TooMany(head, asked);
  if (head.status == 404) {
    return absl::NotFoundError(
        fmt::format("{}{}: HTTP 404; is HF_ENDPOINT a hub?", asked.settings.endpoint, asked.path));
  }
  return absl::UnavailableError(fmt::format("{} answers HTTP {}{}", asked.settings.endpoint,
                                            head.status, why.empty() ? "" : ": " + Quoted(why)));
}

}  // namespace hydrant::hub
