// Notifies systemd of the daemon's state (Type=notify): a datagram to the socket in $NOTIFY_SOCKET,
// see sd_notify(3).
#ifndef HYDRANT_SERVER_STARTUP_SYSTEMD_NOTIFIER_H_
#define HYDRANT_SERVER_STARTUP_SYSTEMD_NOTIFIER_H_

#include <string_view>

#include "absl/status/status.h"

namespace hydrant {

inline constexpr std::string_view kServiceReady = "READY=1";
inline constexpr std::string_view kServiceStopping = "STOPPING=1";

// OK also without $NOTIFY_SOCKET. Does not block. Thread safe as long as the environment does
// not change.
absl::Status NotifySystemd(std::string_view state);

}  // namespace hydrant

#endif  // HYDRANT_SERVER_STARTUP_SYSTEMD_NOTIFIER_H_
