#include "plimsoll/io/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "plimsoll/io/error.h"
#include "plimsoll/io/mapped_file.h"

namespace plimsoll::io {

std::string sha256(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) != 1) {
    fail("sha256: the cryptographic library refused the digest");
  }
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += compose("{:02x}", digest[i]);
  return text;
}

std::string sha256_of_file(const std::filesystem::path& path) { return sha256(MappedFile(path).bytes()); }

}  // namespace plimsoll::io
