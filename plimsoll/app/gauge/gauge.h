// `plimsoll gauge` as a function: it writes a checkpoint of the same function that plain FP16 can run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/models/gauge_certificate.h"
#include "plimsoll/models/load.h"

namespace plimsoll::app {

struct GaugeOptions {
  std::filesystem::path model;  // a Hugging Face directory of a T5 or a decoder, or a run or checkpoint
  std::filesystem::path out;    // the directory to make; must not exist
  // T5Texts::read_examples, of a decoder-only model read_gauge_texts; empty: the worst case, from the weights alone.
  std::filesystem::path calibrate;
  int64_t headroom_bits = 3;
  // Exponents at most whose FP16 error is measured on the inputs, of a decoder-only model; 0: amaxes and weights alone
  // choose.
  int64_t measurements = 64;
  // The gradients count, too, of a decoder-only model that is to be trained in FP16 with a loss that is the mean over so
  // many targets.
  bool train = false;
  int64_t step_targets = 2048;
  int64_t batch = 8;                    // inputs at a time, of a T5
  int64_t max_new_tokens = 32;          // of the texts written for inputs without decoder_input_ids, by a T5
  std::function<void()> check = [] {};  // called before each input is read, and at the end; it may throw
  models::Warn warn = {};               // of checkpoints of a run that are damaged
  std::function<void(const std::string& what)> progress = [](const std::string&) {};  // told what is measured next
};

using models::kGaugeCertificate;

// Writes the checkpoint with its certificate in it, or, if it would not have the bits of the source in FP32, throws
// Error and writes nothing; nothing, too, if `check` throws. Returns the certificate (gauge_certificate.h).
nlohmann::json gauge_checkpoint(const GaugeOptions& options);

}  // namespace plimsoll::app
