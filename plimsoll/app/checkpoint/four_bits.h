// Matrices in four bits: what codes of values would lose, and the values of codes that a file has.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <optional>
#include <string>

#include "plimsoll/app/checkpoint/tensor_statistics.h"
#include "plimsoll/format/fp4_block.h"

namespace plimsoll::app {

// Shares that codes in blocks along the rows of a matrix lose (format/fp4_block.h).
struct FourBitShares {
  double saturated = 0;       // elements beyond the largest code; of codes in a file: those that have the largest code
  double flushed = 0;         // elements that become zero; of codes in a file: zeros
  double flushed_blocks = 0;  // blocks that become zero as a whole; of codes in a file: blocks of zeros
};

// Shares that nearest codes would lose of these values, of those that are not zero. amax: of the tensor. None where it is no
// matrix of FP32, BF16 or FP16, or amax is not finite.
std::optional<FourBitShares> four_bit_shares(const at::Tensor& matrix, double amax, format::Fp4Scaling scaling);

// Matrix of codes as compressed-tensors packs it (docs/quantized_files.md).
struct PackedMatrix {
  format::Fp4Scaling scaling = format::Fp4Scaling::kNvfp4;  // kNvfp4 or kMxfp4
  at::Tensor codes;                                         // uint8 [rows, cols / 2]
  at::Tensor scale;                                         // uint8 [rows, cols / block]
  float factor = 1;                                         // of kNvfp4: it divides

  int64_t rows() const { return codes.size(0); }
  int64_t cols() const { return 2 * codes.size(1); }
};

// The tensor beside it that has this name; undefined: there is none.
using FindTensor = std::function<at::Tensor(const std::string& name)>;
// The tensor X.weight_packed with X.weight_scale and, under NVFP4, X.weight_global_scale. None for others, and where shapes
// or dtypes are not those of a layout.
std::optional<PackedMatrix> packed_matrix(const std::string& name, const at::Tensor& tensor, const FindTensor& find);

struct PackedStatistics {
  TensorStatistics values;
  FourBitShares shares;
};
PackedStatistics statistics_of(const PackedMatrix& matrix);

}  // namespace plimsoll::app
