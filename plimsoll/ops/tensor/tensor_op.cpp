#include "plimsoll/ops/tensor/tensor_op.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <tuple>

#include "plimsoll/ops/dispatcher/find_operator.h"
#include "plimsoll/ops/dispatcher/meta.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/transposed.h"

namespace plimsoll::ops {
namespace {

using c10::SymInt;
using recipe::GemmKind;

// A block beyond the matrix is one block.
recipe::Granularity granularity(at::IntArrayRef block, int64_t rows, int64_t cols, const char* op) {
  check_block(block, op);
  return {std::min(block[0], std::max<int64_t>(rows, 1)), std::min(block[1], std::max<int64_t>(cols, 1))};
}

format::Format scale_format_of(const at::Tensor& scale, const char* op) {
  TORCH_CHECK(scale.scalar_type() == at::kFloat || scale.scalar_type() == at::kByte, op,
              ": expected a scale of float32 or uint8 (E8M0), got ", scale.scalar_type());
  return scale.scalar_type() == at::kByte ? format::Format::kE8m0 : format::Format::kFp32;
}

ScaledTensor scaled_tensor(const at::Tensor& codes, const at::Tensor& scale, std::string_view format,
                           at::IntArrayRef block, const char* op) {
  const format::Format parsed = parse_format(format, op);
  TORCH_CHECK(codes.dim() == 2 && codes.scalar_type() == at::kByte && format::is_fp8(parsed), op,
              ": expected a matrix of uint8 codes of e4m3 or e5m2, got ", codes.sizes(), " of ", codes.scalar_type(),
              " as ", format);
  check_same_device(codes, scale, op, "the scale");
  ScaledTensor tensor{.data = codes.contiguous(),
                      .scale = scale.contiguous(),
                      .format = parsed,
                      .granularity = granularity(block, codes.size(0), codes.size(1), op),
                      .scale_format = scale_format_of(scale, op)};
  const auto shape = scale_shape(tensor.granularity, codes.size(0), codes.size(1));
  TORCH_CHECK(scale.numel() == shape[0] * shape[1], op, ": expected a scale of ", shape[0], " x ", shape[1], ", got ",
              scale.sizes());
  return tensor;
}

at::Tensor scalar_of(const AmaxSlot& amax) { return amax.memory().view(at::IntArrayRef()); }

std::tuple<at::Tensor, at::Tensor> quantize_op(const at::Tensor& x, const at::Tensor& scale, std::string_view format) {
  check_device_values(x, "quantize", "x");
  check_same_device(x, scale, "quantize", "the scale");
  TORCH_CHECK(scale.numel() == 1 && scale.scalar_type() == at::kFloat, "quantize: expected one float32 scale, got ",
              scale.sizes(), " of ", scale.scalar_type());
  const Quantized result = quantize(
      as_matrix(x, "quantize"), {.format = parse_format(format, "quantize"), .scale = ScaleRef(scale.view({1, 1}))});
  return {result.tensor.data.view(x.sizes()), scalar_of(result.amax)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_blocks_op(const at::Tensor& x, std::string_view format,
                                                                  at::IntArrayRef block, std::string_view scale_format,
                                                                  bool power_of_two, std::string_view rounding) {
  check_device_values(x, "quantize_blocks", "x");
  TORCH_CHECK(scale_format == "fp32" || scale_format == "e8m0",
              "quantize_blocks: expected scale_format fp32 or e8m0, got '", scale_format, "'");
  TORCH_CHECK(rounding == "up" || rounding == "down", "quantize_blocks: expected rounding up or down, got '", rounding,
              "'");
  const at::Tensor matrix = as_matrix(x, "quantize_blocks");
  const Quantized result =
      quantize(matrix, {.format = parse_format(format, "quantize_blocks"),
                        .granularity = granularity(block, matrix.size(0), matrix.size(1), "quantize_blocks"),
                        .scale_format = scale_format == "e8m0" ? format::Format::kE8m0 : format::Format::kFp32,
                        .power_of_two = power_of_two,
                        .rounding = rounding == "up" ? format::ScaleRounding::kUp : format::ScaleRounding::kDown});
  return {result.tensor.data.view(x.sizes()), result.tensor.scale, scalar_of(result.amax)};
}

at::Tensor dequantize_op(const at::Tensor& codes, const at::Tensor& scale, std::string_view format,
                         at::IntArrayRef block, at::ScalarType dtype) {
  return dequantize(scaled_tensor(codes, scale, format, block, "dequantize"), dtype);
}

at::Tensor amax_op(const at::Tensor& x) {
  check_device_values(x, "amax", "x");
  return scalar_of(find_amax(as_matrix(x, "amax")));
}

at::Tensor column_sum_op(const at::Tensor& x) {
  check_device_values(x, "column_sum", "x");
  return column_sum(as_matrix(x, "column_sum"));
}

at::Tensor transpose_op(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "transpose: expected a matrix, got ", x.sizes());
  const int64_t bytes = static_cast<int64_t>(x.element_size());
  TORCH_CHECK(bytes == 1 || bytes == 2 || bytes == 4, "transpose: expected elements of 1, 2 or 4 bytes, got ", bytes);
  return transposed(x);
}

GemmKind parse_kind(std::string_view kind) {
  if (kind == "output") return GemmKind::kOutput;
  if (kind == "grad_input") return GemmKind::kGradInput;
  TORCH_CHECK(kind == "grad_weight", "gemm: expected kind output, grad_input or grad_weight, got '", kind, "'");
  return GemmKind::kGradWeight;
}

at::Tensor multiply_checked(const ScaledTensor& a, const ScaledTensor& b, const std::optional<at::Tensor>& bias,
                            std::string_view kind, at::ScalarType dtype) {
  const GemmKind gemm = parse_kind(kind);
  const bool a_transposed = gemm == GemmKind::kGradWeight, b_transposed = gemm != GemmKind::kOutput;
  const int64_t m = a.data.size(a_transposed ? 1 : 0), n = b.data.size(b_transposed ? 1 : 0);
  TORCH_CHECK(a.data.size(a_transposed ? 0 : 1) == b.data.size(b_transposed ? 0 : 1),
              "gemm: expected a and b that fit ", kind, ", got ", a.data.sizes(), " and ", b.data.sizes());
  TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == n), "gemm: expected a bias [", n, "], got ",
              bias ? bias->sizes() : at::IntArrayRef{});
  check_same_device(a.data, b.data, "gemm", "b");
  if (bias) check_device_values(*bias, "gemm", "bias");
  if (bias) check_same_device(a.data, *bias, "gemm", "bias");
  format_of(dtype, "gemm");
  at::Tensor output = at::empty({m, n}, a.data.options().dtype(dtype));
  const at::Tensor bias_fp32 = as_fp32(bias.value_or(at::Tensor()));
  multiply({.kind = gemm, .a = a, .b = b, .epilogue = {.bias = data_or_null(bias_fp32)}}, output);
  return output;
}

at::Tensor gemm_op(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                   std::string_view kind, at::ScalarType dtype) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "gemm: expected two matrices, got ", a.sizes(), " and ", b.sizes());
  const format::Format a_format = check_device_values(a, "gemm", "a"), b_format = check_device_values(b, "gemm", "b");
  return multiply_checked(plain_values(a.contiguous(), a_format), plain_values(b.contiguous(), b_format), bias, kind,
                          dtype);
}

at::Tensor scaled_gemm_op(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                          const at::Tensor& scale_b, std::string_view format_a, std::string_view format_b,
                          at::IntArrayRef block_a, at::IntArrayRef block_b, const std::optional<at::Tensor>& bias,
                          std::string_view kind, at::ScalarType dtype) {
  return multiply_checked(scaled_tensor(a, scale_a, format_a, block_a, "scaled_gemm"),
                          scaled_tensor(b, scale_b, format_b, block_b, "scaled_gemm"), bias, kind, dtype);
}

at::Tensor scalar_meta(const at::Tensor& like) { return empty_meta({}, like, at::kFloat); }

std::tuple<at::Tensor, at::Tensor> quantize_meta(const at::Tensor& x, const at::Tensor& scale, std::string_view) {
  check_one_device("quantize", {x, scale});
  return {empty_like_dense(x, at::kByte), scalar_meta(x)};
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
  return {empty_like_dense(x, at::kByte), scale, scalar_meta(x)};
}

at::Tensor dequantize_meta(const at::Tensor& codes, const at::Tensor& scale, std::string_view, at::IntArrayRef,
                           at::ScalarType dtype) {
  check_one_device("dequantize", {codes, scale});
  return empty_like_dense(codes, dtype);
}

at::Tensor amax_meta(const at::Tensor& x) { return scalar_meta(x); }
at::Tensor column_sum_meta(const at::Tensor& x) { return empty_meta({x.sym_size(-1)}, x, at::kFloat); }
at::Tensor transpose_meta(const at::Tensor& x) {
  return empty_meta({x.sym_size(1), x.sym_size(0)}, x, x.scalar_type());
}

at::Tensor gemm_meta(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                     std::string_view kind, at::ScalarType dtype) {
  check_one_device("gemm", {a, b, bias});
  return empty_meta({a.sym_size(kind == "grad_weight" ? 1 : 0), b.sym_size(kind == "output" ? 0 : 1)}, a, dtype);
}

at::Tensor scaled_gemm_meta(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                            const at::Tensor& scale_b, std::string_view, std::string_view, at::IntArrayRef,
                            at::IntArrayRef, const std::optional<at::Tensor>& bias, std::string_view kind,
                            at::ScalarType dtype) {
  check_one_device("scaled_gemm", {a, scale_a, scale_b});
  return gemm_meta(a, b, bias, kind, dtype);
}

constexpr const char* kSchemas[] = {
    // x [rows, cols] with one given scale.
    "quantize(Tensor x, Tensor scale, str format) -> (Tensor codes, Tensor amax)",
    // The scale of each block from its own amax.
    "quantize_blocks(Tensor x, str format, int[2] block, *, str scale_format='fp32', bool power_of_two=False, "
    "str rounding='up') -> (Tensor codes, Tensor scale, Tensor amax)",
    "dequantize(Tensor codes, Tensor scale, str format, int[2] block, ScalarType dtype) -> Tensor",
    "amax(Tensor x) -> Tensor",
    "column_sum(Tensor x) -> Tensor",
    "transpose(Tensor x) -> Tensor",
    // The products of a linear layer: kind "output" a b^T, "grad_input" a b, "grad_weight" a^T b.
    "gemm(Tensor a, Tensor b, Tensor? bias, str kind, ScalarType dtype) -> Tensor",
    "scaled_gemm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, *, str format_a, str format_b, int[2] block_a, "
    "int[2] block_b, Tensor? bias, str kind, ScalarType dtype) -> Tensor",
};

}  // namespace

void define_tensor(torch::Library& library) {
  for (const char* schema : kSchemas) library.def(schema, {at::Tag::pt2_compliant_tag});
}

void register_tensor(torch::Library& library) {
  library.impl("quantize", &quantize_op);
  library.impl("quantize_blocks", &quantize_blocks_op);
  library.impl("dequantize", &dequantize_op);
  library.impl("amax", &amax_op);
  library.impl("column_sum", &column_sum_op);
  library.impl("transpose", &transpose_op);
  library.impl("gemm", &gemm_op);
  library.impl("scaled_gemm", &scaled_gemm_op);
}

void register_tensor_meta(torch::Library& library) {
  library.impl("quantize", &quantize_meta);
  library.impl("quantize_blocks", &quantize_blocks_meta);
  library.impl("dequantize", &dequantize_meta);
  library.impl("amax", &amax_meta);
  library.impl("column_sum", &column_sum_meta);
  library.impl("transpose", &transpose_meta);
  library.impl("gemm", &gemm_meta);
  library.impl("scaled_gemm", &scaled_gemm_meta);
}

namespace dispatch {

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias, std::string_view kind,
                at::ScalarType dtype) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                               at::ScalarType)>("plimsoll::gemm");
  return op.call(a, b, bias, kind, dtype);
}

at::Tensor column_sum(const at::Tensor& x) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&)>("plimsoll::column_sum");
  return op.call(x);
}

}  // namespace dispatch
}  // namespace plimsoll::ops
