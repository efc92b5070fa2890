// SHA-256 digests (FIPS 180-4) as 64 lower-case hexadecimal digits.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace plimsoll::io {

std::string sha256(std::span<const std::byte> bytes);
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace plimsoll::io
