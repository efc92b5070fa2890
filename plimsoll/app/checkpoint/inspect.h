// Statistics of the tensors in a file or checkpoint, as `plimsoll inspect` reports them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/app/checkpoint/tensor_statistics.h"

namespace plimsoll::app {

struct TensorReport {
  std::string name;  // in a checkpoint: file/name
  std::string dtype;
  std::vector<int64_t> shape;
  TensorStatistics statistics;
};

// The tensors of a safetensors file, of a Hugging Face directory, of a directory of such files (a checkpoint), or of a run's
// latest good checkpoint.
std::vector<TensorReport> inspect(const std::filesystem::path& path);

// {"name", "dtype", "shape", "amax", "rms", "zeros", "non_finite", "headroom_bits": {"e4m3", "e5m2", "fp16"}}; zeros
// and non_finite are shares. What is no number in JSON is a string ("nan", "inf") as amax and null as headroom.
nlohmann::json to_json(const TensorReport& report);

}  // namespace plimsoll::app
