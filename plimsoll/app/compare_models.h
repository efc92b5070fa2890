// `plimsoll compare DIR DIR` as a function: the tensors and configs of two models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll::app {

struct TensorDifference {
  std::string name;
  std::string first, second;  // "F32 [2, 3]"; empty where the model has no such tensor
  std::optional<double>
      relative_l2;     // |second - first| / |first|, in FP64; none where a shape differs or a tensor is absent
  double largest = 0;  // magnitude of a difference

  bool is_zero() const { return relative_l2 && *relative_l2 == 0; }
};

struct ModelDifference {
  std::vector<std::string> config;  // names of members of config.json that differ, or that one has alone
  std::vector<TensorDifference> tensors;
};

// Differences between two Hugging Face directories. Throws io::Error.
ModelDifference compare_models(const std::filesystem::path& first, const std::filesystem::path& second);

// {"name", "first", "second", "relative_l2", "largest"}; null where there is no such number, or none that is finite.
nlohmann::json to_json(const TensorDifference& difference);

}  // namespace plimsoll::app
