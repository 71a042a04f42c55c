#include "tests/server/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <fstream>

namespace hydrant {
namespace {

EVP_PKEY* NewKey() { return EVP_EC_gen("P-256"); }

template <typename Write>
std::string ToPem(const Write& write) {
  BIO* const bio = BIO_new(BIO_s_mem());
  if (write(bio) != 1) std::abort();
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio, &text);
  std::string pem(text, static_cast<size_t>(size));
  BIO_free(bio);
  return pem;
}

void Extend(X509* certificate, X509* issuer, int what, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, what, value);
  if (extension == nullptr || X509_add_ext(certificate, extension, -1) != 1) std::abort();
  X509_EXTENSION_free(extension);
}

X509* NewCertificate(const std::string& name, EVP_PKEY* key, long from_s, long until_s) {
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  long serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial) - 1);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate), until_s);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

void SignWith(EVP_PKEY* key, X509* issuer, X509* certificate) {
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
  if (X509_sign(certificate, key, EVP_sha256()) == 0) std::abort();
}

std::string PemOf(X509* certificate) {
  return ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string path = std::filesystem::temp_directory_path() / "hydrant_test_XXXXXX";
  if (mkdtemp(path.data()) == nullptr) std::abort();
  path_ = path;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(const std::string& name, const std::string& text) const {
  const std::string beside = Path(name + ".new");
  std::ofstream(beside, std::ios::binary) << text;
  std::filesystem::rename(beside, Path(name));
  return Path(name);
}

TestAuthority::TestAuthority(const std::string& name)
    : key_(NewKey()), certificate_(NewCertificate(name, key_, -60, 7200)) {
  Extend(certificate_, certificate_, NID_basic_constraints, "critical,CA:TRUE");
  SignWith(key_, certificate_, certificate_);
  certificate_pem_ = PemOf(certificate_);
}

TestAuthority::~TestAuthority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

KeyAndCertificate TestAuthority::Sign(const std::string& name, long from_s, long until_s) const {
  EVP_PKEY* const key = NewKey();
  X509* const certificate = NewCertificate(name, key, from_s, until_s);
  Extend(certificate, certificate_, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  SignWith(key_, certificate_, certificate);
  KeyAndCertificate signed_by_it{.key = ToPem([&](BIO* bio) {
                                   return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0,
                                                                   nullptr, nullptr);
                                 }),
                                 .certificate = PemOf(certificate)};
  X509_free(certificate);
  EVP_PKEY_free(key);
  return signed_by_it;
}

}  // namespace hydrant
