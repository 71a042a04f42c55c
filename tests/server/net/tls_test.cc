// TLS: refused files and their errors, the protocol of a port, and certificates that change while
// streams are open. Certificates are the test's own; OpenSSL's command line checks the port
// independently.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "server/net/certificates.h"
#include "server/net/port_probe.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/subprocess.h"

namespace hydrant {
namespace {

using grpc::StatusCode;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kOpenSsl[] = "/usr/bin/openssl";

struct Said {
  int code;
  std::string text;
};
Said RunCommand(const std::vector<std::string>& arguments) {
  Subprocess process(arguments);
  const int code = process.Wait();
  return {code, process.out() + process.err()};
}

// The output of /usr/bin/openssl s_client with these arguments.
Said Look(const TestServer& server, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {kOpenSsl, "s_client", "-connect", server.address(), "-alpn",
                                       "h2", "-servername", "localhost", "-verify_return_error"});
  return RunCommand(arguments);
}

class Tls : public testing::Test {
 protected:
  Tls() { Put("server", authority_.Sign("first")); }

  void Put(const std::string& name, const KeyAndCertificate& pair) {
    folder_.Write(name + ".crt", pair.certificate);
    folder_.Write(name + ".key", pair.key);
  }
  TlsFiles Files(bool client_ca = false) {
    return {.certificate = folder_.Path("server.crt"),
            .key = folder_.Path("server.key"),
            .client_ca =
                client_ca ? folder_.Write("clients.crt", clients_.certificate()) : std::string()};
  }
  TestServerOptions Options(bool client_ca = false) {
    auto loaded = Certificates::Load(Files(client_ca));
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    certificates_ = *std::move(loaded);
    TestServerOptions options;
    options.grpc.certificates = certificates_;
    options.log_level = spdlog::level::off;
    return options;
  }
  std::shared_ptr<grpc::ChannelCredentials> Trusting(const TestAuthority& authority,
                                                     const KeyAndCertificate& own = {}) const {
    return grpc::SslCredentials({.pem_root_certs = authority.certificate(),
                                 .pem_private_key = own.key,
                                 .pem_cert_chain = own.certificate});
  }
  static grpc::Status Ask(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    v1::GetModelInfoResponse response;
    return v1::Hydrant::NewStub(channel)->GetModelInfo(&context, {}, &response);
  }

  TemporaryFolder folder_;
  TestAuthority authority_{"the server's CA"}, clients_{"the clients' CA"};
  std::shared_ptr<Certificates> certificates_;
};

TEST_F(Tls, FilesThatCannotBeUsedAreNamedByTheirFlag) {
  const KeyAndCertificate good = authority_.Sign("good"), other = authority_.Sign("other");
  const std::string encrypted_path = folder_.Path("encrypted.key");
  ASSERT_EQ(RunCommand({kOpenSsl, "pkey", "-in", folder_.Write("good.key", good.key), "-aes256",
                        "-passout", "pass:secret", "-out", encrypted_path})
                .code,
            0);
  const std::string crt = folder_.Write("good.crt", good.certificate),
                    key = folder_.Path("good.key"), nothing = folder_.Write("nothing", ""),
                    text = folder_.Write("text", "not PEM\n"),
                    cut = folder_.Write("cut", good.certificate.substr(0, 200)),
                    chain = folder_.Write("chain", good.certificate +
                                                       authority_.certificate().substr(0, 200) +
                                                       "\n-----END CERTIFICATE-----\n"),
                    expired =
                        folder_.Write("expired", authority_.Sign("old", -7200, -3600).certificate),
                    early = folder_.Write("early", authority_.Sign("new", 3600, 7200).certificate),
                    others = folder_.Write("others.key", other.key);
  const struct {
    TlsFiles files;
    std::vector<std::string> mentions;
  } cases[] = {
      {{"/no/such.crt", key, ""}, {"--tls-certificate /no/such.crt", "No such file"}},
      {{crt, "/no/such.key", ""}, {"--tls-key /no/such.key", "No such file"}},
      {{crt, key, "/no/such.ca"}, {"--tls-client-ca /no/such.ca", "No such file"}},
      {{"/tmp", key, ""}, {"--tls-certificate /tmp", "directory"}},
      {{"/dev/zero", key, ""}, {"--tls-certificate /dev/zero: is no regular file"}},
      {{crt, "/dev/zero", ""}, {"--tls-key /dev/zero: is no regular file"}},
      {{nothing, key, ""}, {"--tls-certificate", "holds no certificate"}},
      {{text, key, ""}, {"--tls-certificate", "holds no certificate"}},
      {{cut, key, ""}, {"--tls-certificate", "holds no certificate"}},
      {{chain, key, ""}, {"--tls-certificate", "a certificate that cannot be read"}},
      {{key, key, ""}, {"--tls-certificate", "holds no certificate"}},
      {{crt, crt, ""}, {"--tls-key", "holds no private key"}},
      {{crt, encrypted_path, ""}, {"--tls-key", "is encrypted"}},
      {{crt, others, ""}, {"--tls-key", "is not the key of --tls-certificate " + crt}},
      {{expired, key, ""}, {"--tls-certificate", "has expired", "good until"}},
      {{early, key, ""}, {"--tls-certificate", "is not good before"}},
      {{crt, key, text}, {"--tls-client-ca", "holds no certificate"}},
      {{crt, key, expired}, {"--tls-client-ca", "has expired"}},
  };
  for (const auto& c : cases) {
    const auto pem = ReadPem(c.files, absl::Now());
    ASSERT_FALSE(pem.ok()) << c.mentions.front();
    for (const std::string& mention : c.mentions)
      EXPECT_THAT(std::string(pem.status().message()), HasSubstr(mention));
    EXPECT_THAT(std::string(pem.status().message()), Not(HasSubstr("PRIVATE KEY")));
  }
  EXPECT_TRUE(ReadPem({crt, key, crt}, absl::Now()).ok());
}

TEST_F(Tls, ClientsOfTheRightAuthorityAreServed) {
  TestServer server(Options());
  EXPECT_TRUE(Ask(server.NewChannel(Trusting(authority_))).ok());
  EXPECT_EQ(Ask(server.NewChannel(Trusting(clients_))).error_code(), StatusCode::UNAVAILABLE)
      << "a client that trusts another authority";
  EXPECT_EQ(Ask(server.NewChannel()).error_code(), StatusCode::UNAVAILABLE)
      << "a client without TLS";
  EXPECT_TRUE(Ask(server.NewChannel(Trusting(authority_))).ok()) << "after refused clients";
}

TEST_F(Tls, AnOutsiderSeesHttp2OverTls) {
  TestServer server(Options());
  const std::string ca = folder_.Write("ca.crt", authority_.certificate());
  const Said good = Look(server, {"-CAfile", ca, "-verify_hostname", "localhost"});
  EXPECT_THAT(good.text, AllOf(HasSubstr("ALPN protocol: h2"), HasSubstr("Verification: OK"),
                               HasSubstr("TLSv1.3")));
  EXPECT_THAT(Look(server, {"-CAfile", ca, "-tls1_2"}).text, HasSubstr("ALPN protocol: h2"));
  EXPECT_THAT(Look(server, {"-CAfile", ca, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"}).text,
              Not(HasSubstr("ALPN protocol: h2")))
      << "versions before 1.2 are not spoken";
  const std::string other = folder_.Write("other.crt", clients_.certificate());
  EXPECT_THAT(Look(server, {"-CAfile", other}).text,
              HasSubstr("unable to get local issuer certificate"));
}

TEST_F(Tls, ClientsMustShowACertificateWhereACaIsNamed) {
  TestServer server(Options(/*client_ca=*/true));
  const auto with = [&](const KeyAndCertificate& own) {
    return Ask(server.NewChannel(Trusting(authority_, own))).error_code();
  };
  EXPECT_EQ(with(clients_.Sign("client")), StatusCode::OK);
  EXPECT_EQ(with({}), StatusCode::UNAVAILABLE) << "none";
  EXPECT_EQ(with(authority_.Sign("client")), StatusCode::UNAVAILABLE) << "of another authority";
  EXPECT_EQ(with(clients_.Sign("client", -7200, -3600)), StatusCode::UNAVAILABLE) << "expired";
  EXPECT_EQ(with(clients_.Sign("client")), StatusCode::OK);

  const std::string ca = folder_.Write("ca.crt", authority_.certificate());
  Put("old", clients_.Sign("client", -7200, -3600));
  // With TLS 1.3 a client learns of a bad certificate after its own handshake; with 1.2 within.
  const Said expired = Look(server, {"-CAfile", ca, "-tls1_2", "-cert", folder_.Path("old.crt"),
                                     "-key", folder_.Path("old.key")});
  EXPECT_NE(expired.code, 0);
  EXPECT_THAT(expired.text, AnyOf(HasSubstr("alert"), HasSubstr("unexpected eof")));
}

// Open streams continue, new connections get the new certificate, and clients that already trust
// the new authority are served.
TEST_F(Tls, CertificatesChangeUnderALiveStream) {
  TestServer server(Options());
  server.engine.Pause();
  const auto channel = server.NewChannel(Trusting(authority_));
  const auto stub = v1::Hydrant::NewStub(channel);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, TextRequest("x", 50));
  v1::GenerateResponse accepted;
  ASSERT_TRUE(reader->Read(&accepted));

  const TestAuthority next("the next CA");
  Put("server", next.Sign("second"));
  EXPECT_TRUE(certificates_->Reload().ok());
  EXPECT_TRUE(Ask(server.NewChannel(Trusting(next))).ok());
  EXPECT_EQ(Ask(server.NewChannel(Trusting(authority_))).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Ask(channel).ok()) << "a connection keeps what it began with";

  server.engine.Resume();
  StreamResult rest;
  ReadRest(&context, reader.get(), &rest);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(rest.token_ids.size(), 50u);
}

// Without a signal: new connections trigger the check.
TEST_F(Tls, ChangedFilesAreSeenByThemselves) {
  TestServer server(Options());
  EXPECT_TRUE(Ask(server.NewChannel(Trusting(authority_))).ok());
  const TestAuthority next("the next CA");
  Put("server", next.Sign("second"));
  EXPECT_TRUE(WaitFor([&] { return Ask(server.NewChannel(Trusting(next))).ok(); }));
}

TEST_F(Tls, AFileThatGoesBadChangesNothing) {
  TestServer server(Options());
  for (const char* bad : {"", "nonsense", "-----BEGIN CERTIFICATE-----\n"}) {
    folder_.Write("server.crt", bad);
    EXPECT_FALSE(certificates_->Reload().ok());
    EXPECT_TRUE(Ask(server.NewChannel(Trusting(authority_))).ok()) << bad;
  }
  folder_.Write("server.crt", authority_.Sign("of another key").certificate);
  EXPECT_THAT(std::string(certificates_->Reload().message()), HasSubstr("is not the key of"));
  EXPECT_TRUE(Ask(server.NewChannel(Trusting(authority_))).ok());
  std::filesystem::remove(folder_.Path("server.key"));
  EXPECT_FALSE(certificates_->Reload().ok());
  EXPECT_TRUE(Ask(server.NewChannel(Trusting(authority_))).ok());
  Put("server", authority_.Sign("good again"));
  EXPECT_TRUE(certificates_->Reload().ok());
  EXPECT_TRUE(Ask(server.NewChannel(Trusting(authority_))).ok());
}

TEST_F(Tls, TheWatchUnderstandsTheAnswer) {
  TestServer server(Options(/*client_ca=*/true));
  const PortProbe::Options quick{.interval = std::chrono::milliseconds(1),
                                 .timeout = std::chrono::milliseconds(5000)};
  PortProbe::Options tls = quick;
  tls.tls = true;
  PortProbe plain_watch(server.server->LocalAddress(), quick);
  EXPECT_TRUE(WaitFor([&] { return plain_watch.state() != PortState::kAnswers; }))
      << "it does not speak HTTP/2 without TLS";
  // The state begins as kAnswers: let it check for a while.
  PortProbe tls_watch(server.server->LocalAddress(), tls);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(tls_watch.state(), PortState::kAnswers);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// A unix socket and loopback are local.
TEST(Insecure, AReachablePortRequiresTlsOrAFlag) {
  EventRouter router;
  Service service({}, &router);
  const auto start = [&](const std::string& listen, bool insecure) {
    return GrpcServer::Start({.listen = listen, .insecure = insecure}, &service).status();
  };
  for (const char* open : {"0.0.0.0:0", "[::]:0", ":0"}) {
    const absl::Status refused = start(open, false);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << open << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("--insecure"), HasSubstr("--tls-certificate"), HasSubstr(open)));
    EXPECT_TRUE(start(open, true).ok()) << open;
  }
  const TemporaryFolder folder;
  for (const std::string& local : {std::string("127.0.0.1:0"), std::string("127.1.2.3:0"),
                                   std::string("localhost:0"), "unix:" + folder.Path("socket")})
    EXPECT_TRUE(start(local, false).ok()) << local;
}

}  // namespace
}  // namespace hydrant
