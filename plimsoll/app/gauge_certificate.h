// What a gauged checkpoint says about itself, as JSON:
//   headroom_bits, calibration {kind, inputs, input_tokens, decoder_tokens, file_sha256},
//   exponents {residual, pairs {module: exponent}}, layer_norm_epsilon,
//   weights and values [{name, exponent, amax, headroom_bits, headroom_bits_before, lost_bits}],
//   below_headroom [names], without_freedom [sentences],
//   fp32 {bit_identical, inputs, outputs}, fp16 {finite, encoder_relative_l2, logits_relative_l2}.
// amax, headroom_bits and lost_bits (weights only) are those of the checkpoint written.
#pragma once

#include <nlohmann/json.hpp>

#include "plimsoll/gauge/search.h"

namespace plimsoll::app {

struct GaugeFindings {
  const gauge::Freedoms& freedoms;
  const gauge::Exponents& exponents;
  const gauge::WeightRanges& weights;  // of the source
  const gauge::Amaxes& values;         // of the source
  int64_t headroom_bits = 3;
};

// Without what is measured on inputs.
nlohmann::json describe(const GaugeFindings& findings);

}  // namespace plimsoll::app
