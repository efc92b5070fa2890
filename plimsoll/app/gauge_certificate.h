// Certificate of a gauged checkpoint, as JSON:
//   headroom_bits, calibration {kind, inputs, input_tokens, decoder_tokens, file_sha256},
//   exponents {residual, pairs {module: exponent}}, layer_norm_epsilon (of a Gpt norm_epsilon),
//   search {measurements, most_measurements, inputs, input_tokens, logits_relative_l2, by_amaxes_logits_relative_l2},
//     of measurements 0 that alone: the exponents are the best by amaxes and weights,
//   weights and values [{name, exponent, amax, headroom_bits, headroom_bits_before, lost_bits}],
//   below_headroom [names] (values with less than headroom_bits, weights that do not fit), without_freedom [sentences],
//   fp32 {bit_identical, rounded_weights {name: {elements, relative_error}}, inputs, outputs},
//   fp16 {finite, encoder_relative_l2, logits_relative_l2}, those that it has.
// amax, headroom_bits and lost_bits (weights only) are those of the checkpoint written.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/gauge/measured_search.h"
#include "plimsoll/gauge/search.h"

namespace plimsoll::app {

struct GaugeFindings {
  const models::Freedoms& freedoms;
  const models::Exponents& exponents;
  const gauge::WeightRanges& weights;  // of the source
  const models::Amaxes& values;        // of the source
  int64_t headroom_bits = 3;
};

// Without what is measured on inputs.
nlohmann::json describe(const GaugeFindings& findings);

// The certificate's member `calibration`: `inputs` texts of so many tokens from a file, which may be none.
nlohmann::json calibration_json(const std::filesystem::path& file, int64_t inputs, int64_t tokens);

// The certificate's member `search`: of measurements on `inputs` texts of so many tokens.
nlohmann::json search_json(const gauge::MeasuredExponents& found, int64_t most_measurements, int64_t inputs,
                           int64_t tokens);

// The certificate's member fp32.inputs. Without a file one text was drawn.
std::string verified_inputs(const std::filesystem::path& file, int64_t drawn_tokens);

// Throws Error: what was to be written is another function.
[[noreturn]] void refuse_other_bits(const std::filesystem::path& model);

}  // namespace plimsoll::app
