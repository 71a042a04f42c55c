// Delays after ended connections, and networks that count as one client.
#include "server/net/connection_backoff.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "server/net/listening_sockets.h"
#include "server/net/socket_pair.h"
#include "tests/server/http_get.h"

namespace hydrant {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ConnectionBackoff, NewConnectionsOfTheNetworkWait) {
  ConnectionBackoff clients;
  const auto start = ConnectionBackoff::Clock::now();
  EXPECT_FALSE(clients.Any(start));
  EXPECT_EQ(clients.Wait("a", start), milliseconds(0));
  clients.Add("a", start);
  EXPECT_TRUE(clients.Any(start));
  EXPECT_GT(clients.Wait("a", start), milliseconds(0));
  EXPECT_LE(clients.Wait("a", start), seconds(1)) << "or good clients behind a balancer notice";
  EXPECT_EQ(clients.Wait("b", start), milliseconds(0));
  clients.Add("a", start + seconds(8));
  EXPECT_GT(clients.Wait("a", start + seconds(17)), milliseconds(0)) << "counted from the last one";
  EXPECT_EQ(clients.Wait("a", start + seconds(19)), milliseconds(0));
  EXPECT_FALSE(clients.Any(start + seconds(19)));
}

TEST(SocketPair, HasTheConnectionsAddresses) {
  for (const std::string listen : {"127.0.0.1:0", "0.0.0.0:0", "[::]:0"}) {
    auto sockets = ListeningSockets::Open(listen);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    const int client = ConnectTo("127.0.0.1:" + std::to_string(sockets->port()));
    int server = -1;
    for (const int fd : sockets->fds()) {
      if (server < 0) server = accept(fd, nullptr, nullptr);
    }
    ASSERT_GE(server, 0) << listen;
    sockaddr_in ours{};
    socklen_t size = sizeof(ours);
    ASSERT_EQ(getsockname(client, reinterpret_cast<sockaddr*>(&ours), &size), 0);
    const auto ends = SocketPairOf(server);
    ASSERT_TRUE(ends.has_value()) << listen;
    EXPECT_EQ(ends->remote.address, std::string("\x7f\0\0\1", 4)) << listen;
    EXPECT_EQ(ends->remote.port, ntohs(ours.sin_port)) << listen;
    EXPECT_EQ(ends->local.port, sockets->port()) << listen;
    EXPECT_EQ(AddressText(ends->remote), "127.0.0.1");
    close(server);
    close(client);
  }
  EXPECT_EQ(SocketPairOf(-1), std::nullopt);
}

TEST(SocketPair, AClientOfIpv6HasItsNetwork) {
  const SocketAddress one{.address = std::string("\x20\1\x0d\xb8\0\0\0\1"
                                                 "12345678",
                                                 16),
                          .port = 1};
  const SocketAddress other{.address = std::string("\x20\1\x0d\xb8\0\0\0\1"
                                                   "87654321",
                                                   16),
                            .port = 2};
  EXPECT_EQ(NetworkOf(one), NetworkOf(other));
  EXPECT_EQ(AddressText(one), "2001:db8:0:1:3132:3334:3536:3738");
  const SocketAddress third{.address = std::string("\x20\1\x0d\xb8\0\0\0\2"
                                                   "12345678",
                                                   16)};
  EXPECT_NE(NetworkOf(one), NetworkOf(third));
}

}  // namespace
}  // namespace hydrant
