// Text as bytes: token = byte, vocabulary 256. Loses nothing, whatever the encoding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace plimsoll::io {

inline constexpr int64_t kByteVocabulary = 256;

// [bytes] int64.
at::Tensor encode_bytes(std::string_view text);

// The byte of a token in [0, 256).
constexpr char decode_byte(int64_t token) { return static_cast<char>(static_cast<unsigned char>(token)); }

}  // namespace plimsoll::io
