#include "plimsoll/shard/average/compression.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::shard {
namespace {

static_assert(recipe::kBlock1x128.block_cols == kCompressedBlock);

at::ScalarType dtype_of(Compression compression) {
  switch (compression) {
    case Compression::kFp16:
      return at::kHalf;
    case Compression::kBf16:
      return at::kBFloat16;
    case Compression::kNone:
      return at::kFloat;
    case Compression::kFp8:  // codes and scales together, as bytes
      break;
  }
  runtime::unexpected("compression: dtype", static_cast<int>(compression));
}

}  // namespace

at::Tensor compress(const at::Tensor& values, Compression compression) {
  if (compression != Compression::kFp8) return values.to(dtype_of(compression)).view(at::kByte);
  const ops::ScaledTensor coded = ops::quantize(values, {.granularity = recipe::kBlock1x128}).tensor;
  return at::cat({coded.data, coded.scale.view(at::kByte)}, 1);
}

at::Tensor compress_and_keep_rest(const at::Tensor& values, at::Tensor& left, Compression compression) {
  left.add_(values);
  const at::Tensor bytes = compress(left, compression);
  left.sub_(decompress(bytes, left.size(1), compression)).nan_to_num_(0, 0, 0);
  return bytes;
}

at::Tensor decompress(const at::Tensor& bytes, int64_t elements, Compression compression) {
  if (compression != Compression::kFp8) return bytes.view(dtype_of(compression)).to(at::kFloat);
  const at::Tensor scale = bytes.slice(1, elements).contiguous().view(at::kFloat);
  return ops::dequantize({.data = bytes.slice(1, 0, elements).contiguous(),
                          .scale = scale,
                          .format = format::Format::kE4m3,
                          .granularity = recipe::kBlock1x128},
                         at::kFloat);
}

}  // namespace plimsoll::shard
