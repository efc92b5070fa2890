// Weights as codes for inference: their kinds, and what they are made of.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace plimsoll::ops {

enum class CodeKind : uint8_t {
  kE4m3Rows,  // a byte an element, a scale a row
  kNvfp4,     // E2M1, a half byte: an E4M3 scale for 16 elements of a row, an FP32 scale for all (format/fp4_block.h)
  kMxfp4,     // E2M1: an E8M0 scale for 32 elements of a row
};

// Weight that codes are made of.
struct CodeSource {
  at::Tensor weight = {};           // [out, in], fp32, bf16 or fp16
  std::function<void()> done = {};  // called whenever a part of it has been read
};

// Bytes of codes and scales of a [rows, cols] weight.
double bytes_of_codes(CodeKind kind, int64_t rows, int64_t cols);

// body(part, first_row): the weights' rows, one after another, in parts of a few MiB. A head is large, and its pages are
// given back as it is read.
void for_each_part(const std::vector<CodeSource>& sources,
                   const std::function<void(const at::Tensor& part, int64_t first_row)>& body);

}  // namespace plimsoll::ops
