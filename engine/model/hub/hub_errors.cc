#include "engine/model/hub/hub_errors.h"

#include <fmt/format.h>

#include "engine/model/text.h"

namespace hydrant::hub {
namespace {

std::string PageOf(const HubRequest& request) {
  return request.settings.endpoint + "/" + request.reference.repo;
}

absl::Status Gated(const HubRequest& request) {
  if (!request.settings.token.empty()) {
    return absl::PermissionDeniedError(fmt::format(
        "{} is gated, and the account of the token in use has no access: ask for it at {}",
        request.reference.repo, PageOf(request)));
  }
  return absl::PermissionDeniedError(fmt::format(
      "{} is gated: accept its terms at {}, then set HF_TOKEN to a token of that account",
      request.reference.repo, PageOf(request)));
}

absl::Status NoRepository(const HubRequest& request) {
  return absl::NotFoundError(fmt::format(
      "{} has no model {}, or a private one{}", request.settings.endpoint, request.reference.repo,
      request.settings.token.empty() ? ": check the name, or set HF_TOKEN"
                                     : " that the account of the token in use may not read"));
}

absl::Status Forbidden(const HubRequest& request, const std::string& why) {
  return absl::PermissionDeniedError(fmt::format(
      "{} may not be read{}{}", request.reference.repo, why.empty() ? "" : ": " + Quoted(why),
      request.settings.token.empty() ? "; set HF_TOKEN to a token that may read it"
                                     : "; the token in use may not read it"));
}

absl::Status TooMany(const HttpHead& head, const HubRequest& request) {
  return absl::ResourceExhaustedError(fmt::format(
      "{} limits requests (HTTP 429){}{}", request.settings.endpoint,
      head.retry_after.has_value() ? fmt::format(" for {} s", head.retry_after->count()) : "",
      request.settings.token.empty() ? "; with a token in HF_TOKEN the limit is higher" : ""));
}

}  // namespace

absl::Status RefusalOf(const HttpHead& head, const HubRequest& request) {
  const std::string code = head.Header("x-error-code");
  const std::string why = head.Header("x-error-message");
  if (code == "GatedRepo") return Gated(request);
  if (code == "RevisionNotFound") {
    return absl::NotFoundError(fmt::format("{} has no revision {}; {}/tree/main lists them",
                                           request.reference.repo,
                                           Quoted(request.reference.revision), PageOf(request)));
  }
  if (code == "EntryNotFound") {
    return absl::NotFoundError(
        fmt::format("{} has no {}", request.reference.repo, Quoted(request.path)));
  }
  if (head.status == 401 && !request.settings.token.empty() && code != "RepoNotFound") {
    return absl::PermissionDeniedError(
        fmt::format("{} does not accept the token in use: set HF_TOKEN to a valid one, or unset it",
                    request.settings.endpoint));
  }
  // Without a token the hub answers 401 for missing and for private repositories.
  if (code == "RepoNotFound" || head.status == 401) return NoRepository(request);
  if (head.status == 403) return Forbidden(request, why);
  if (head.status == 429) return TooMany(head, request);
  if (head.status == 404) {
    return absl::NotFoundError(fmt::format("{}{}: HTTP 404; is HF_ENDPOINT a hub?",
                                           request.settings.endpoint, request.path));
  }
  return absl::UnavailableError(fmt::format("{} answers HTTP {}{}", request.settings.endpoint,
                                            head.status, why.empty() ? "" : ": " + Quoted(why)));
}

}  // namespace hydrant::hub
