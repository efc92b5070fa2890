// Choice of the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace plimsoll::nn {

struct SamplingOptions {
  double temperature = 0.8;  // 0: always the likeliest
  int64_t top_k = 0;         // of the likeliest only; 0: of all
  double top_p = 1.0;        // of as few of these as hold this share of their probability
  double min_p = 0.0;        // of those that have this share of the likeliest one's probability
};

// Options of transformers 5 where a model draws and nothing more is said.
inline constexpr SamplingOptions kUsualSampling = {.temperature = 1.0, .top_k = 50, .top_p = 1.0};

// A c10::ValueError that names what is out of range.
void check(const SamplingOptions& options);

// Draws from softmax(logits / temperature) with `uniform` in [0, 1) as the only source of chance. Of equal logits the
// first wins.
int64_t sample(std::span<const float> logits, const SamplingOptions& options, double uniform);

// The logits that sample() draws by: logits / temperature where it may draw, -Inf elsewhere.
std::vector<float> logits_of_draws(std::span<const float> logits, const SamplingOptions& options);

}  // namespace plimsoll::nn
