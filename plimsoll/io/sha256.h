// SHA-256 digests (FIPS 180-4) as 64 lower-case hexadecimal digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::io {

// The digest of bytes that come in parts.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  std::string digits();  // once, at the end

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// A file is digested in parts of this size, so that several threads can verify one.
inline constexpr size_t kDigestedBytes = size_t{64} << 20;

struct FileDigest {
  uint64_t bytes = 0;
  std::vector<std::string> sha256 = {};  // of each part; the last one may be shorter

  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

// The digest of a file whose bytes come one after the other.
class FileDigester {
 public:
  void add(std::span<const std::byte> bytes);
  FileDigest digest();  // once, at the end

 private:
  void end_part();

  FileDigest digest_;
  std::unique_ptr<Sha256> part_;
  size_t in_part_ = 0;
};

std::string sha256(std::span<const std::byte> bytes);
std::string sha256_of_file(const std::filesystem::path& path);

// The digest of a file that holds this text.
FileDigest digest_of(std::string_view text);

}  // namespace plimsoll::io
