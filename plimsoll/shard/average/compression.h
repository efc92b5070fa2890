// Gradients in fewer bytes while they travel.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>

#include "plimsoll/recipe/named.h"

namespace plimsoll::shard {

enum class Compression : uint8_t {
  kNone,  // FP32
  kFp16,
  kBf16,
  kFp8,  // E4M3 with an FP32 scale for each 128 elements
};

inline constexpr std::array<recipe::Named<Compression>, 4> kCompressions = {{{"none", Compression::kNone},
                                                                             {"fp16", Compression::kFp16},
                                                                             {"bf16", Compression::kBf16},
                                                                             {"fp8", Compression::kFp8}}};

// Elements that share a scale: a part that travels is a multiple of it.
inline constexpr int64_t kCompressedBlock = 128;

// values fp32 [parts, elements], elements a multiple of kCompressedBlock -> uint8 [parts, bytes of that many elements].
// Values that are not finite stay so, each in its block.
at::Tensor compress(const at::Tensor& values, Compression compression);

// compress() of values + left. What rounding leaves out of that takes the place of `left`, a tensor of the same shape;
// an element that is not finite leaves nothing.
at::Tensor compress_and_keep_rest(const at::Tensor& values, at::Tensor& left, Compression compression);

// -> fp32 [parts, elements].
at::Tensor decompress(const at::Tensor& bytes, int64_t elements, Compression compression);

}  // namespace plimsoll::shard
