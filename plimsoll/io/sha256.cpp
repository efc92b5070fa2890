#include "plimsoll/io/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "plimsoll/io/error.h"
#include "plimsoll/io/mapped_file.h"

namespace plimsoll::io {
namespace {

void expect_success(int result) {
  if (result != 1) fail("sha256: the cryptographic library refused the digest");
}

}  // namespace

struct Sha256::Context {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  expect_success(EVP_DigestInit_ex(context_->digest.get(), EVP_sha256(), nullptr));
}
Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  expect_success(EVP_DigestUpdate(context_->digest.get(), bytes.data(), bytes.size()));
}

std::string Sha256::digits() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  expect_success(EVP_DigestFinal_ex(context_->digest.get(), digest.data(), &length));
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += compose("{:02x}", digest[i]);
  return text;
}

std::string sha256(std::span<const std::byte> bytes) {
  Sha256 digest;
  digest.add(bytes);
  return digest.digits();
}

std::string sha256_of_file(const std::filesystem::path& path) { return sha256(MappedFile(path).bytes()); }

FileDigest digest_of(std::string_view text) {
  return {.bytes = text.size(), .sha256 = sha256(std::as_bytes(std::span(text)))};
}

}  // namespace plimsoll::io
