#include "server/net/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/small_file.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr std::chrono::seconds kBetweenLooks{1};
constexpr std::chrono::seconds kBetweenLogLines{10};
constexpr size_t kMaxCertificateBytes = size_t{4} << 20;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

// A flag and its file.
struct Source {
  const char* flag;
  const std::string& path;

  absl::Status Wrong(std::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", std::string(why)));
  }
};

absl::StatusOr<std::string> ReadText(const Source& source) {
  absl::StatusOr<std::string> text = ReadSmallFile(source.path, kMaxCertificateBytes);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(absl::StrCat(source.flag, " ", text.status().message()));
}

Bio Over(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free};
}

// The next certificate; null: the end, or an invalid certificate.
X509Ptr NextCertificate(BIO* bio) {
  return {PEM_read_bio_X509(bio, nullptr, nullptr, nullptr), &X509_free};
}

// Whether reading stopped at the end, not at an invalid certificate.
bool EndedWell() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  return ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
}

std::string TimeText(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()), &BIO_free);
  ASN1_TIME_print(bio.get(), time);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(size)};
}

absl::Status CheckTime(const Source& source, X509* certificate, absl::Time now) {
  time_t seconds = absl::ToTimeT(now);
  if (X509_cmp_time(X509_get0_notAfter(certificate), &seconds) < 0)
    return source.Wrong("has expired: it was good until " +
                        TimeText(X509_get0_notAfter(certificate)));
  if (X509_cmp_time(X509_get0_notBefore(certificate), &seconds) > 0)
    return source.Wrong("is not good before " + TimeText(X509_get0_notBefore(certificate)));
  return absl::OkStatus();
}

// The first certificate of a file, after all have been checked.
absl::StatusOr<X509Ptr> CheckCertificates(const Source& source, const std::string& pem,
                                          absl::Time now) {
  ERR_clear_error();
  const Bio bio = Over(pem);
  X509Ptr first = NextCertificate(bio.get());
  if (first == nullptr) {
    ERR_clear_error();
    return source.Wrong("holds no certificate in PEM");
  }
  HYDRANT_RETURN_IF_ERROR(CheckTime(source, first.get(), now));
  while (NextCertificate(bio.get()) != nullptr) {
  }
  if (!EndedWell()) return source.Wrong("holds a certificate that cannot be read");
  return first;
}

absl::Status CheckKey(const Source& source, const std::string& pem, const Source& of,
                      X509* certificate) {
  const Bio bio = Over(pem);
  // An encrypted key asks for a password, which fails.
  const auto no_password = [](char*, int, int, void* asked) {
    *static_cast<bool*>(asked) = true;
    return -1;
  };
  bool asked = false;
  const KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, &asked),
                   &EVP_PKEY_free);
  ERR_clear_error();
  if (asked) return source.Wrong("is encrypted; give one without a password");
  if (key == nullptr) return source.Wrong("holds no private key in PEM");
  const bool fits = X509_check_private_key(certificate, key.get()) == 1;
  ERR_clear_error();
  return fits ? absl::OkStatus()
              : source.Wrong(absl::StrCat("is not the key of ", of.flag, " ", of.path));
}

}  // namespace

absl::StatusOr<Pem> ReadPem(const TlsFiles& files, absl::Time now) {
  const Source certificate{"--tls-certificate", files.certificate};
  const Source key{"--tls-key", files.key};
  const Source client_ca{"--tls-client-ca", files.client_ca};
  Pem pem;
  HYDRANT_ASSIGN_OR_RETURN(pem.certificate, ReadText(certificate));
  HYDRANT_ASSIGN_OR_RETURN(const X509Ptr own, CheckCertificates(certificate, pem.certificate, now));
  HYDRANT_ASSIGN_OR_RETURN(pem.key, ReadText(key));
  HYDRANT_RETURN_IF_ERROR(CheckKey(key, pem.key, certificate, own.get()));
  if (files.client_ca.empty()) return pem;
  HYDRANT_ASSIGN_OR_RETURN(pem.client_ca, ReadText(client_ca));
  HYDRANT_RETURN_IF_ERROR(CheckCertificates(client_ca, pem.client_ca, now).status());
  return pem;
}

absl::StatusOr<std::shared_ptr<Certificates>> Certificates::Load(const TlsFiles& files) {
  HYDRANT_ASSIGN_OR_RETURN(Pem pem, ReadPem(files, absl::Now()));
  return std::shared_ptr<Certificates>(new Certificates(files, std::move(pem)));
}

Certificates::Certificates(TlsFiles files, Pem pem)
    : files_(std::move(files)),
      pem_(std::make_shared<const Pem>(std::move(pem))),
      next_look_(Clock::now() + kBetweenLooks) {}

std::shared_ptr<const Pem> Certificates::Current() {
  const MutexLock lock(mutex_);
  if (Clock::now() >= next_look_) (void)Look();
  return pem_;
}

absl::Status Certificates::Reload() {
  const MutexLock lock(mutex_);
  return Look();
}

absl::Status Certificates::Look() {
  next_look_ = Clock::now() + kBetweenLooks;
  absl::StatusOr<Pem> pem = ReadPem(files_, absl::Now());
  if (!pem.ok()) {
    // The two files are not replaced atomically, so the error may be temporary.
    if (Clock::now() >= next_log_) {
      next_log_ = Clock::now() + kBetweenLogLines;
      spdlog::error("{}; connections get the certificates from before",
                    std::string(pem.status().message()));
    }
    return pem.status();
  }
  if (*pem == *pem_) return absl::OkStatus();
  pem_ = std::make_shared<const Pem>(*std::move(pem));
  spdlog::info("new connections get the certificates that are in {} now", files_.certificate);
  return absl::OkStatus();
}

}  // namespace hydrant
