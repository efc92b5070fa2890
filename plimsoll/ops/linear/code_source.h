// Weights as codes: their kinds, and what they are made of.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace plimsoll::ops {

enum class CodeKind : uint8_t {
  kE4m3Rows,    // a byte an element, a scale a row
  kE4m3Blocks,  // a byte an element, an FP32 scale for 128 elements of a row
  kNvfp4,       // E2M1, a half byte: an E4M3 scale for 16 elements of a row, an FP32 scale for all (format/fp4_block.h)
  kMxfp4,       // E2M1: an E8M0 scale for 32 elements of a row
};

// Codes as a file has them.
struct StoredCodes {
  at::Tensor codes = {};   // uint8 [out, in]; of E2M1 [out, in / 2], the element of even index in the low half
  at::Tensor scale = {};   // fp32 [out, 1] or, by blocks, [out, ceil(in / 128)]; of E2M1 uint8 [out, in / block]
  float tensor_scale = 1;  // of kNvfp4
};

// Weight that codes are made of, or codes that there are already.
struct CodeSource {
  at::Tensor weight = {};           // [out, in], fp32, bf16 or fp16
  std::function<void()> done = {};  // called whenever a part of it has been read
  StoredCodes stored = {};          // in the place of `weight`, which is undefined then

  bool is_stored() const { return stored.codes.defined(); }
  int64_t rows() const { return is_stored() ? stored.codes.size(0) : weight.size(0); }
};

// Bytes of codes and scales of a [rows, cols] weight.
double bytes_of_codes(CodeKind kind, int64_t rows, int64_t cols);

// Codes, or block scales, of all sources, one after another by rows. Without a copy where there is one source.
at::Tensor joined_codes(const std::vector<CodeSource>& sources);
at::Tensor joined_scales(const std::vector<CodeSource>& sources);
// fp32 [1] where all tensor scales are the same, else [rows].
at::Tensor joined_tensor_scales(const std::vector<CodeSource>& sources);

// body(part, first_row): the weights' rows, one after another, in parts of a few MiB. A head is large, and its pages are
// given back as it is read.
void for_each_part(const std::vector<CodeSource>& sources,
                   const std::function<void(const at::Tensor& part, int64_t first_row)>& body);

}  // namespace plimsoll::ops
