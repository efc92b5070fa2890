// Which token comes next.
#pragma once

#include <cstdint>
#include <span>

namespace plimsoll::app {

struct SamplingOptions {
  double temperature = 0.8;  // 0: always the likeliest
  int64_t top_k = 0;         // of the likeliest only; 0: of all
};

// Draws from softmax(logits / temperature) with `uniform` in [0, 1) as the only source of chance. Of equal logits the
// first wins.
int64_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace plimsoll::app
