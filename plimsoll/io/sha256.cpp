#include "plimsoll/io/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <utility>

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

void FileDigester::add(std::span<const std::byte> bytes) {
  digest_.bytes += bytes.size();
  while (!bytes.empty()) {
    if (part_ == nullptr) part_ = std::make_unique<Sha256>();
    const auto now = bytes.first(std::min(bytes.size(), kDigestedBytes - in_part_));
    part_->add(now);
    in_part_ += now.size();
    bytes = bytes.subspan(now.size());
    if (in_part_ == kDigestedBytes) end_part();
  }
}

void FileDigester::end_part() {
  digest_.sha256.push_back(part_->digits());
  part_ = nullptr;
  in_part_ = 0;
}

FileDigest FileDigester::digest() {
  if (part_ != nullptr) end_part();
  return std::move(digest_);
}

FileDigest digest_of(std::string_view text) {
  FileDigester digester;
  digester.add(std::as_bytes(std::span(text)));
  return digester.digest();
}

}  // namespace plimsoll::io
