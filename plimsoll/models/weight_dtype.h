// Dtype that the weights of a loaded model are held in, and the dtype of the computation in between.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <cstdint>
#include <optional>

#include "plimsoll/ops/linear/code_source.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::models {

enum class WeightDtype : uint8_t {
  kAsStored,
  kFp32,
  kBf16,
  kFp16,
  kFp8,    // E4M3 codes with a scale a row, for inference; bf16 in between
  kNvfp4,  // E2M1 codes, likewise: ops::CodeKind
  kMxfp4,
};
inline constexpr std::array<recipe::Named<WeightDtype>, 7> kWeightDtypes = {{{"stored", WeightDtype::kAsStored},
                                                                             {"fp32", WeightDtype::kFp32},
                                                                             {"bf16", WeightDtype::kBf16},
                                                                             {"fp16", WeightDtype::kFp16},
                                                                             {"fp8", WeightDtype::kFp8},
                                                                             {"nvfp4", WeightDtype::kNvfp4},
                                                                             {"mxfp4", WeightDtype::kMxfp4}}};

// Codes of the weights that products read; none for a dtype of values.
std::optional<ops::CodeKind> code_kind(WeightDtype dtype);

// Dtype of the computation, for weights that a file has in `stored`.
at::ScalarType computed_in(WeightDtype dtype, at::ScalarType stored);

}  // namespace plimsoll::models
