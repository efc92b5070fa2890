// Cosines and sines of rotary positions, shared by the layers of a model: ops::rotary(x, table.at(..), options). Source:
// Su et al., "RoFormer", 2021; scalings as Hugging Face's rope_parameters say.
#pragma once

#include <cstdint>
#include <memory>

#include "plimsoll/ops/rotary/rotary.h"

namespace plimsoll::nn {

enum class RotaryScaling : uint8_t {
  kNone,
  kLinear,  // inv_freq / factor
  kLlama3,  // the same for long wavelengths, inv_freq for short ones, a mean of both between
};

struct RotaryTableOptions {
  double theta = 10000.0;  // inv_freq[i] = theta^(-2 i / rotated)
  double share = 1.0;      // of a head's channels, the first, that are turned (partial_rotary_factor, rotary_pct)
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1.0;  // kLinear, kLlama3
  // kLlama3. Wavelengths longer than the old context / low_freq_factor are long, shorter than / high_freq_factor short.
  double low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;

  friend bool operator==(const RotaryTableOptions&, const RotaryTableOptions&) = default;
};

// Angles are FP32, position * inv_freq, each rounded as transformers rounds it; their cosines and sines are those of
// double, rounded to FP32. A position's are the same bits whatever else is asked for. Rows are made when they are first
// needed and kept; copies share them. Any number of threads.
class RotaryTable {
 public:
  // Channels of a head; an even number of them is turned.
  explicit RotaryTable(int64_t channels, const RotaryTableOptions& options = {});

  // [count, rotated()], of the positions begin, begin + 1, ...
  ops::RotaryTurns at(int64_t begin, int64_t count) const;
  // [.., rotated()], of the positions int64 [..] of each token. A batch whose rows stand at other places, as in decoding
  // prompts of other lengths, asks for [batch, seq].
  ops::RotaryTurns at(const at::Tensor& positions) const;

  const at::Tensor& inv_freq() const { return inv_freq_; }  // fp32 [rotated() / 2]
  int64_t rotated() const { return 2 * inv_freq_.size(0); }

 private:
  struct Rows;

  ops::RotaryTurns first(int64_t count) const;

  at::Tensor inv_freq_;
  std::shared_ptr<Rows> rows_;
};

}  // namespace plimsoll::nn
