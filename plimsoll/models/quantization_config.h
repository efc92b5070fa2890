// Member quantization_config of a config.json: how a file has the matrices of a model as codes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/ops/linear/code_source.h"

namespace plimsoll::models {

// Layout of a matrix [n, k], whose module is X. Codes are X.weight, F8_E4M3 [n, k], or for E2M1 X.weight_packed, U8
// [n, k / 2].
struct CodeLayout {
  enum class Scales : uint8_t {
    kTensor,  // [1]
    kRows,    // [n, 1]
    kBlocks,  // [ceil(n / 128), ceil(k / 128)]
    kGroups,  // [n, k / 16] of F8_E4M3 with X.weight_global_scale, F32 [1], which divides; [n, k / 32] of E8M0 as U8
  };

  ops::CodeKind kind = ops::CodeKind::kE4m3Rows;
  Scales scales = Scales::kRows;
  std::string scale = "weight_scale";  // X.weight_scale; F32, BF16 or F16 beside E4M3

  bool is_e2m1() const { return scales == Scales::kGroups; }
};

struct QuantizationConfig {
  std::string name;                      // "fp8", or compressed-tensors' format
  std::vector<CodeLayout> layouts = {};  // not empty
  std::string ignore_member = {};        // and the modules that it says to have values, without patterns
  std::vector<std::string> ignored = {};
  bool has_codes = true;  // false: the file may have values alone, which codes are yet to be made of
};

// None where config.json has no such member. name: of the file, opens errors. Throws io::Error that names the member at
// fault and what is supported.
std::optional<QuantizationConfig> read_quantization_config(const nlohmann::json& config, const std::string& name);

// Layouts that are written.
enum class QuantizedFormat : uint8_t {
  kFp8,       // compressed-tensors' float-quantized with a scale a row
  kFp8Block,  // quant_method fp8
  kNvfp4,     // compressed-tensors' nvfp4-pack-quantized
  kMxfp4,     // compressed-tensors' mxfp4-pack-quantized
};

CodeLayout layout_of(QuantizedFormat format);
// The member of a file in which all linear layers but `ignored` have that layout. read_quantization_config reads it back.
nlohmann::json quantization_config_json(QuantizedFormat format, const std::vector<std::string>& ignored);

}  // namespace plimsoll::models
