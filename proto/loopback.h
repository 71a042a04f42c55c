// Keeps gRPC channels to servers on this machine away from the proxies of http_proxy, https_proxy
// and grpc_proxy: a proxy would look for "localhost" on its own machine. For other addresses gRPC
// honours these variables, and no_proxy. Stateless.
#ifndef HYDRANT_PROTO_LOOPBACK_H_
#define HYDRANT_PROTO_LOOPBACK_H_

#include <grpcpp/support/channel_arguments.h>

#include <string_view>

namespace hydrant {

// Whether the address, in gRPC's syntax, is of this machine: "localhost:50051", "ipv6:[::1]:50051",
// "unix:FILE". Host names are not resolved.
inline bool IsOnThisMachine(std::string_view address) {
  if (address.starts_with("unix:") || address.starts_with("unix-abstract:")) return true;
  for (const std::string_view scheme : {"ipv4:", "ipv6:", "dns:"}) {
    if (address.starts_with(scheme)) address.remove_prefix(scheme.size());
  }
  if (address.starts_with("//")) address.remove_prefix(address.find_last_of('/') + 1);
  if (address.starts_with("[")) address.remove_prefix(1);
  const auto is_host = [&](std::string_view host) {
    return address.starts_with(host) &&
           (address.size() == host.size() || address[host.size()] == ':' ||
            address[host.size()] == ']');
  };
  const std::string_view digits = address.substr(0, address.find_first_not_of("0123456789."));
  return is_host("localhost") || is_host("::1") || (digits.starts_with("127.") && is_host(digits));
}

inline void UseNoProxyOnThisMachine(std::string_view address, grpc::ChannelArguments* arguments) {
  if (IsOnThisMachine(address)) arguments->SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
}

}  // namespace hydrant

#endif  // HYDRANT_PROTO_LOOPBACK_H_
