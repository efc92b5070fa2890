#include "plimsoll/ops/library_meta.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>

#include "plimsoll/ops/activation.h"
#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/meta.h"

namespace plimsoll::ops {
namespace {

using c10::SymInt;
using c10::SymIntArrayRef;

at::Tensor empty_like_dense(const at::Tensor& like, at::ScalarType dtype) {
  return empty_meta(like.sym_sizes(), like, dtype);
}
at::Tensor scalar(const at::Tensor& like) { return empty_meta({}, like, at::kFloat); }

std::tuple<at::Tensor, at::Tensor> quantize_meta(const at::Tensor& x, const at::Tensor&, std::string_view) {
  return {empty_like_dense(x, at::kByte), scalar(x)};
}

SymInt rows_of(const at::Tensor& x) {
  SymInt rows = 1;
  for (int64_t dim = 0; dim < x.dim() - 1; ++dim) rows = rows * x.sym_size(dim);
  return rows;
}

// No tensor has so many rows or columns.
constexpr int64_t kBeyondAnyExtent = int64_t{1} << 62;

SymInt blocks_in(const SymInt& extent, int64_t block) {
  return block == 0 ? SymInt(1)
                    : (extent + (std::min(block, kBeyondAnyExtent) - 1)) / std::min(block, kBeyondAnyExtent);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_blocks_meta(const at::Tensor& x, std::string_view,
                                                                    at::IntArrayRef block,
                                                                    std::string_view scale_format, bool,
                                                                    std::string_view) {
  check_block(block, "quantize_blocks");
  const at::ScalarType scale_dtype = scale_format == "e8m0" ? at::kByte : at::kFloat;
  const at::Tensor scale =
      empty_meta({blocks_in(rows_of(x), block[0]), blocks_in(x.sym_size(-1), block[1])}, x, scale_dtype);
  return {empty_like_dense(x, at::kByte), scale, scalar(x)};
}

at::Tensor dequantize_meta(const at::Tensor& codes, const at::Tensor&, std::string_view, at::IntArrayRef,
                           at::ScalarType dtype) {
  return empty_like_dense(codes, dtype);
}

at::Tensor amax_meta(const at::Tensor& x) { return scalar(x); }
at::Tensor column_sum_meta(const at::Tensor& x) { return empty_meta({x.sym_size(-1)}, x, at::kFloat); }
at::Tensor transpose_meta(const at::Tensor& x) {
  return empty_meta({x.sym_size(1), x.sym_size(0)}, x, x.scalar_type());
}

at::Tensor gemm_meta(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>&, std::string_view kind,
                     at::ScalarType dtype) {
  return empty_meta({a.sym_size(kind == "grad_weight" ? 1 : 0), b.sym_size(kind == "output" ? 0 : 1)}, a, dtype);
}

at::Tensor scaled_gemm_meta(const at::Tensor& a, const at::Tensor& b, const at::Tensor&, const at::Tensor&,
                            std::string_view, std::string_view, at::IntArrayRef, at::IntArrayRef,
                            const std::optional<at::Tensor>& bias, std::string_view kind, at::ScalarType dtype) {
  return gemm_meta(a, b, bias, kind, dtype);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> norm_forward_meta(
    const at::Tensor& x, const std::optional<at::Tensor>& residual, const at::Tensor&, const std::optional<at::Tensor>&,
    std::string_view kind, bool, double, at::ScalarType dtype) {
  const at::Tensor sum = residual ? empty_like_dense(x, x.scalar_type()) : empty_meta({0}, x, x.scalar_type());
  const SymInt rows = rows_of(x);
  const at::Tensor mean = empty_meta({kind == "rmsnorm" ? SymInt(0) : rows}, x, at::kFloat);
  return {empty_like_dense(x, dtype), sum, mean, empty_meta({rows}, x, at::kFloat)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_backward_meta(const at::Tensor&, const std::optional<at::Tensor>&,
                                                                  const at::Tensor& x, const at::Tensor& weight,
                                                                  const at::Tensor&, const at::Tensor&,
                                                                  std::string_view kind, bool, double) {
  const at::Tensor dbias = empty_meta({kind == "rmsnorm" ? SymInt(0) : x.sym_size(-1)}, x, at::kFloat);
  return {empty_like_dense(x, x.scalar_type()), empty_like_dense(weight, at::kFloat), dbias};
}

at::Tensor activation_forward_meta(const at::Tensor& x, std::string_view kind) {
  TORCH_CHECK(x.dim() >= 1, "activation: expected a tensor of one dimension or more, got a scalar");
  std::vector<SymInt> sizes = x.sym_sizes().vec();
  if (kernels::is_gated(parse_activation(kind))) sizes.back() = sizes.back() / 2;
  return empty_meta(sizes, x, x.scalar_type());
}

at::Tensor activation_backward_meta(const at::Tensor& x, const at::Tensor&, std::string_view) {
  return empty_like_dense(x, x.scalar_type());
}

at::Tensor softmax_forward_meta(const at::Tensor& x, double, std::string_view, const std::optional<at::Tensor>&) {
  return empty_like_dense(x, x.scalar_type());
}

at::Tensor softmax_backward_meta(const at::Tensor& y, const at::Tensor&, double) {
  return empty_like_dense(y, y.scalar_type());
}

}  // namespace

void register_meta(torch::Library& library) {
  library.impl("quantize", &quantize_meta);
  library.impl("quantize_blocks", &quantize_blocks_meta);
  library.impl("dequantize", &dequantize_meta);
  library.impl("amax", &amax_meta);
  library.impl("column_sum", &column_sum_meta);
  library.impl("transpose", &transpose_meta);
  library.impl("gemm", &gemm_meta);
  library.impl("scaled_gemm", &scaled_gemm_meta);
  library.impl("norm_forward", &norm_forward_meta);
  library.impl("norm_backward", &norm_backward_meta);
  library.impl("activation_forward", &activation_forward_meta);
  library.impl("activation_backward", &activation_backward_meta);
  library.impl("softmax_forward", &softmax_forward_meta);
  library.impl("softmax_backward", &softmax_backward_meta);
}

}  // namespace plimsoll::ops
