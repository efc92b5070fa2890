// `plimsoll quantize` as a function: a model as a Hugging Face directory whose matrices are codes (docs/quantized_files.md).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "plimsoll/models/load.h"
#include "plimsoll/models/quantization_config.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::app {

inline constexpr std::array<recipe::Named<models::QuantizedFormat>, 4> kQuantizedFormats = {
    {{"fp8", models::QuantizedFormat::kFp8},
     {"fp8-block", models::QuantizedFormat::kFp8Block},
     {"nvfp4", models::QuantizedFormat::kNvfp4},
     {"mxfp4", models::QuantizedFormat::kMxfp4}}};
inline constexpr std::array<recipe::Named<models::WeightDtype>, 4> kValueDtypes = {
    {{"stored", models::WeightDtype::kAsStored},
     {"fp32", models::WeightDtype::kFp32},
     {"bf16", models::WeightDtype::kBf16},
     {"fp16", models::WeightDtype::kFp16}}};

struct QuantizeOptions {
  std::filesystem::path model;  // a Hugging Face directory of values
  std::filesystem::path out;    // is made
  models::QuantizedFormat format = models::QuantizedFormat::kFp8;
  std::vector<std::string> keep = {};  // modules whose weights stay values, by their whole names or the ends of them
  models::WeightDtype dtype = models::WeightDtype::kBf16;  // of what stays values, of kValueDtypes
  bool rotate = false;  // the residual stream first (models/decoder/rotation.h), of llama, mistral, qwen2 and qwen3
  // A text on whose inputs codes err least (ops/linear/error_feedback.h), those of the rotated model with `rotate`; empty: codes
  // are nearest.
  std::filesystem::path calibrate = {};
  int64_t calibrate_tokens = 1 << 14;  // of it, from its beginning, at most; fewest_calibration_tokens() or more
  int64_t shard_bytes = int64_t{5} << 30;
  std::function<void(int64_t done, int64_t of)> on_parameter = {};
};

struct QuantizeSummary {
  int64_t bytes_before = 0, bytes_after = 0;    // of all tensors
  int64_t elements = 0;                         // of all weights
  int64_t coded_elements = 0, coded_bytes = 0;  // of the matrices that became codes; with their scales
  int64_t matrices = 0;                         // as the file has them
  double seconds = 0;

  double bits() const { return 8.0 * static_cast<double>(coded_bytes) / static_cast<double>(coded_elements); }
};

// The codes that `--dtype` makes at load, by the same rules, one parameter in memory at a time; with `calibrate` other codes under
// the same rules of scales, and the whole model in FP32 beside them. Embedding, head, norms,
// biases and products that `plimsoll line` has planned in high precision stay values. Throws UsageError, Error, Interrupted
// or io::Error; then there is no directory. A weight that is NaN or Inf is an error.
QuantizeSummary quantize_model(const QuantizeOptions& options);

}  // namespace plimsoll::app
