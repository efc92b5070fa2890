// The sizes of a GPT over bytes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace plimsoll::app {

struct ModelShape {
  int64_t layers = 0;
  int64_t dim = 0;
  int64_t heads = 0;
  int64_t context = 0;
  bool rms_norm = false;  // RMSNorm in place of LayerNorm
  double norm_epsilon = 1e-5;
  bool own_head = true;  // the head does not read the token embedding

  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

// "tiny", "small", "gpt2".
const std::vector<std::string_view>& model_names();

// The sizes of a name. Throws UsageError with the nearest name.
ModelShape model_by_name(std::string_view name);

// Throws UsageError unless all sizes are positive and heads divides dim.
void check_shape(const ModelShape& shape);

// What is as it was for every model once is left out.
void to_json(nlohmann::json& json, const ModelShape& shape);
void from_json(const nlohmann::json& json, ModelShape& shape);

}  // namespace plimsoll::app
