// Statistics of the tensors in a file or checkpoint, as `plimsoll inspect` reports them.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/app/checkpoint/four_bits.h"
#include "plimsoll/app/checkpoint/tensor_statistics.h"

namespace plimsoll::app {

struct TensorReport {
  std::string name;  // in a checkpoint: file/name
  // "NVFP4", "MXFP4" or "FP8" of codes with scales, whose shape and statistics are those of the values.
  std::string dtype;
  std::vector<int64_t> shape;
  TensorStatistics statistics;
  // Shares of a matrix: of values, both; of packed codes, that of their format. None of FP8, nor of scales.
  std::optional<FourBitShares> nvfp4 = {}, mxfp4 = {};

  bool has_four_bits() const { return nvfp4.has_value() || mxfp4.has_value(); }
};

// The tensors of a safetensors file, of a Hugging Face directory, of a directory of such files (a checkpoint), or of a run's
// latest good checkpoint. warn: one line for each newer checkpoint that is damaged.
std::vector<TensorReport> inspect(const std::filesystem::path& path,
                                  const std::function<void(const std::string&)>& warn = {});

// {"name", "dtype", "shape", "amax", "rms", "zeros", "non_finite", "headroom_bits": {"e4m3", "e5m2", "fp16"},
// "four_bits": {"nvfp4": {"saturated", "flushed", "flushed_blocks"}, "mxfp4": the same}}; zeros, non_finite and the last
// three are shares. What is no number in JSON is a string ("nan", "inf") as amax and null as headroom; null are shares of
// a format that says nothing of the tensor.
nlohmann::json to_json(const TensorReport& report);

}  // namespace plimsoll::app
