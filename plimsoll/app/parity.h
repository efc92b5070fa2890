// `plimsoll parity` as a function: one T5 in several dtypes on the user's data, each against FP32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "plimsoll/models/t5/fixes.h"
#include "plimsoll/models/t5/load.h"

namespace plimsoll::app {

struct ParityOptions {
  std::filesystem::path model;  // a Hugging Face directory of a T5
  std::filesystem::path data;   // T5Texts::read_examples
  std::vector<models::T5Dtype> dtypes = {models::T5Dtype::kFp32, models::T5Dtype::kBf16, models::T5Dtype::kFp16,
                                         models::T5Dtype::kFp8};
  models::T5Numerics numerics = models::T5Fixes::seed();  // of fp16
  int64_t batch = 8;                                      // inputs at a time
  int64_t max_new_tokens = 32;                            // of each text that is written
  models::Warn warn = [](const std::string&) {};          // of load_t5
  std::function<void()> check = [] {};                    // called before each batch; it may throw
};

// {"inputs", "decoder_tokens", "dtypes": {name: {...}}}, of each dtype
//   finite: whether all outputs are,
//   first_non_finite: if not, the value in which the first of them came up,
//   encoder_relative_l2: of the encoder's outputs to FP32's, padding left out,
// and, with a decoder, over the decoder's tokens: those given, or those that FP32 writes,
//   logits_kl: mean KL divergence of FP32's distribution of the next token to this dtype's, nats,
//   top1_agreement: share of the tokens whose likeliest follower is FP32's,
//   string_match: share of the inputs for which greedy decoding writes the tokens that FP32 writes,
//   accuracy: share of the inputs with a target for which it writes the target; absent without any,
//   top1_agreement_interval, string_match_interval, accuracy_interval: [low, high] of these shares, wilson_interval,
// and the headroom map
//   headroom: {value: bits to the largest number of the format in which it is held}, null where it was not finite,
// in FP32's entry headroom_fp16, where FP16 would overflow: below 0.
// Numbers that are not finite are null.
nlohmann::json parity(const ParityOptions& options);

}  // namespace plimsoll::app
