// Texts one after the other in one row. Each sees itself alone, and its positions begin at 0.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace plimsoll::models {

// Target of a token whose prediction does not count: the one that losses ignore.
inline constexpr int64_t kNoTarget = -100;

struct PackedTexts {
  at::Tensor tokens;             // int64 [1, total]
  at::Tensor targets;            // int64 [1, total]: what follows each token, or kNoTarget
  std::vector<int64_t> lengths;  // of the texts, one token or more each; their sum is total

  int64_t counted() const;  // targets that count
};

// Positions of the tokens in their texts, int64 [1, total].
at::Tensor positions_of(const std::vector<int64_t>& lengths);

}  // namespace plimsoll::models
