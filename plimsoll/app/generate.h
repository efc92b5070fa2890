// `plimsoll generate` as a function: a trained model continues a prompt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "plimsoll/nn/sampler.h"

namespace plimsoll::app {

struct GenerateOptions {
  std::filesystem::path checkpoint;  // of one step, or a run, of which the latest good one is taken
  std::string prompt = "\n";
  int64_t tokens = 200;  // bytes to write
  nn::SamplingOptions sampling;
  int64_t seed = 1;
};

// Calls `sink` with each byte as it is drawn. The same seed gives the same text. Text beyond the model's context
// continues from the last half of the context. Returns how many bytes there were when the logits were Inf or NaN, which
// ends the text, if they were. Throws Error.
std::optional<int64_t> generate(const GenerateOptions& options, const std::function<void(char)>& sink);

}  // namespace plimsoll::app
