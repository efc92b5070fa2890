#include "plimsoll/ops/tensor/gemm.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "plimsoll/kernels/gemm/gemm_packed.h"
#include "plimsoll/ops/tensor/audited_product.h"
#include "plimsoll/ops/tensor/device_product.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/gemm_matrix.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;

GemmMatrix matrix_a(const Product& product) {
  return gemm_matrix(product.a, product.kind == GemmKind::kGradWeight ? Use::kTransposed : Use::kAsStored);
}

GemmMatrix matrix_b(const Product& product) {
  return gemm_matrix(product.b, product.kind == GemmKind::kOutput ? Use::kAsStored : Use::kTransposed);
}

}  // namespace

GemmMatrix gemm_matrix(const ScaledTensor& tensor, Use use) {
  const at::Tensor& data = tensor.data;
  if (tensor.format == format::Format::kE2m1) {  // two codes a byte, neighbours along k
    const int64_t rows = tensor.turned ? tensor.cols() : tensor.rows();
    return {{.data = data.const_data_ptr(),
             .format = tensor.format,
             .row_stride = 2 * data.size(1),
             .scale = scale_view(tensor, use)},
            rows,
            tensor.length};
  }
  kernels::GemmOperand operand{
      .data = data.const_data_ptr(), .format = tensor.format, .scale = scale_view(tensor, use)};
  if (use == Use::kAsStored) {
    operand.row_stride = data.size(1);
    operand.k_stride = 1;
    return {operand, data.size(0), data.size(1)};
  }
  operand.row_stride = 1;
  operand.k_stride = data.size(1);
  return {operand, data.size(1), data.size(0)};
}

void multiply(const Product& product, const at::Tensor& output, format::Format codes) {
  if (output.is_cuda()) {
    const int64_t k = product.kind == GemmKind::kGradWeight ? product.a.rows() : product.a.cols();
    const watch::Span span(product_name(product.kind), {.operations = 2.0 * static_cast<double>(output.numel() * k),
                                                        .bytes = traffic(product.a.data, product.b.data, output)});
    audit_product(product, output.scalar_type() == at::kByte ? codes : format_of(output.scalar_type(), "gemm"));
    return multiply_on_device(product, output, codes);
  }
  const GemmMatrix a = matrix_a(product), b = matrix_b(product);
  TORCH_INTERNAL_ASSERT(a.k == b.k && output.numel() == a.rows * b.rows && output.is_contiguous());
  const bool packed =
      product.packed != nullptr && product.packed->data.defined() && product.packed->isa == runtime::matmul_isa();
  kernels::GemmEpilogue epilogue = product.epilogue;
  epilogue.scale = product.scale.data();
  epilogue.amax = product.amax.data();
  const at::Tensor& read = packed ? product.packed->data : product.b.data;
  const watch::Span span(product_name(product.kind), {.operations = 2.0 * static_cast<double>(a.rows * b.rows * a.k),
                                                      .bytes = traffic(product.a.data, read, output)});
  const format::Format format = output.scalar_type() == at::kByte ? codes : format_of(output.scalar_type(), "gemm");
  audit_product(product, format);
  kernels::gemm({.a = a.operand,
                 .b = b.operand,
                 .m = a.rows,
                 .n = b.rows,
                 .k = a.k,
                 .output = output.mutable_data_ptr(),
                 .output_format = format,
                 .output_stride = b.rows,
                 .epilogue = epilogue,
                 .packed_b = packed ? product.packed->data.const_data_ptr() : nullptr});
}

PackedWeight pack_weight(const ScaledTensor& weight) {
  const GemmMatrix b = gemm_matrix(weight, Use::kAsStored);
  const size_t bytes = kernels::gemm_packed_b_bytes(b.operand, b.rows, b.k);
  at::Tensor data = at::empty({static_cast<int64_t>(bytes)}, weight.data.options().dtype(at::kByte));
  const watch::Span span("gemm pack", {.bytes = traffic(weight.data, data)});
  kernels::gemm_pack_b(b.operand, b.rows, b.k, data.mutable_data_ptr());
  return {std::move(data), runtime::matmul_isa()};
}

bool is_read_in_place(const ScaledTensor& weight) {
  return kernels::gemm_reads_in_place(gemm_matrix(weight, Use::kAsStored).operand);
}

}  // namespace plimsoll::ops
