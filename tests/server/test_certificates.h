// A test's certificate authority and its certificates, in a temporary folder.
#ifndef HYDRANT_TESTS_SERVER_TEST_CERTIFICATES_H_
#define HYDRANT_TESTS_SERVER_TEST_CERTIFICATES_H_

#include <filesystem>
#include <memory>
#include <string>

struct evp_pkey_st;
struct x509_st;

namespace hydrant {

// A folder for a test's files, removed at its end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string Path(const std::string& name) const { return path_ / name; }
  // Replaces the file atomically, as tools that renew certificates do. Returns its path.
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

struct KeyAndCertificate {
  std::string key, certificate;  // PEM
};

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name);
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  const std::string& certificate() const { return certificate_pem_; }  // PEM
  // For localhost and 127.0.0.1, as a server or a client; valid from `from_s` to `until_s` seconds
  // from now.
  KeyAndCertificate Sign(const std::string& name, long from_s = -60, long until_s = 3600) const;

 private:
  evp_pkey_st* const key_;
  x509_st* const certificate_;
  std::string certificate_pem_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_TEST_CERTIFICATES_H_
