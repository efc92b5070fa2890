// Certificate of a gauged checkpoint, as JSON:
//   headroom_bits, calibration {kind, inputs, input_tokens, decoder_tokens, file_sha256},
//   exponents {residual, pairs {module: exponent}, channels {module: {channel: exponent beside the pair's}}},
//   layer_norm_epsilon (of a Gpt norm_epsilon),
//   search {measurements, most_measurements, inputs, input_tokens, of, relative_l2, by_amaxes_relative_l2}, the errors of
//     logits, or their sums of logits and gradients; of 0 measurements that alone: the exponents are the best by amaxes,
//   train {recipe, targets_a_step, loss_scale, most_loss_scale, gradients_relative_l2,
//     loss_scales [{loss_scale, gradients_relative_l2}], gradients [{name of the value, exponent, amax, headroom_bits}]},
//     with --train: loss_scale 1 is none, null that no scale was found to be finite; gradients keep their headroom up to
//     most_loss_scale, or have less without a scale; amaxes are without it,
//   weights and values [{name, exponent, amax, headroom_bits, headroom_bits_before, lost_bits}],
//   below_headroom [names] (values with less than headroom_bits, weights that do not fit), without_freedom [sentences],
//   fp32 {bit_identical, rounded_weights {name: {elements, relative_error}}, inputs, outputs},
//   fp16 {finite, encoder_relative_l2, logits_relative_l2}, those that it has.
// amax, headroom_bits and lost_bits (weights only) are those of the checkpoint written.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/app/gauge/gauge_channels.h"
#include "plimsoll/gauge/loss_scale_choice.h"
#include "plimsoll/gauge/measured_search.h"
#include "plimsoll/gauge/search.h"

namespace plimsoll::app {

struct GaugeFindings {
  const models::Freedoms& freedoms;
  const models::Exponents& exponents;
  const GaugedRanges& source;
  const GaugedRanges& balanced;  // which all exponents but those of channels multiply
  int64_t headroom_bits = 3;
};

// Without what is measured on inputs.
nlohmann::json describe(const GaugeFindings& findings);

// The certificate's member `calibration`: `inputs` texts of so many tokens from a file, which may be none.
nlohmann::json calibration_json(const std::filesystem::path& file, int64_t inputs, int64_t tokens);

// The certificate's member `search`.
struct SearchedInputs {
  int64_t inputs = 0, tokens = 0;
  bool gradients = false;  // count, too
};
nlohmann::json search_json(const gauge::MeasuredExponents& found, int64_t most_measurements,
                           const SearchedInputs& inputs);

// The certificate's member `train`. gradients: of the source, by the names of values.
struct GaugedLossScale {
  const gauge::LossScaleChoice& choice;
  double most = 1;  // under which all gradients keep their headroom
  int64_t targets_a_step = 0;
};
nlohmann::json train_json(const GaugedLossScale& scale, const models::Freedoms& freedoms,
                          const models::Exponents& exponents, const models::Amaxes& gradients);

// The certificate's member fp32.inputs. Without a file one text was drawn.
std::string verified_inputs(const std::filesystem::path& file, int64_t drawn_tokens);

// Throws Error: what was to be written is another function.
[[noreturn]] void refuse_other_bits(const std::filesystem::path& model);

}  // namespace plimsoll::app
