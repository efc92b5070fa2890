#include "plimsoll/ops/tensor/dtype.h"

#include <c10/util/Exception.h>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {

static_assert(format::kFormats.size() == static_cast<size_t>(format::Format::kE8m0) + 1, "a format has no facts");

format::Format format_of(at::ScalarType dtype, const char* op) {
  switch (dtype) {
    case at::kFloat:
      return format::Format::kFp32;
    case at::kBFloat16:
      return format::Format::kBf16;
    case at::kHalf:
      return format::Format::kFp16;
    default:
      TORCH_CHECK(false, op, ": expected a tensor of float32, bfloat16 or float16, got ", dtype);
  }
}

format::Format check_values(const at::Tensor& tensor, const char* op, const char* name) {
  TORCH_CHECK(tensor.defined(), op, ": expected ", name, ", got no tensor");
  TORCH_CHECK(tensor.device().is_cpu(), op, ": expected ", name, " on the CPU, got it on ", tensor.device());
  return check_device_values(tensor, op, name);
}

format::Format check_device_values(const at::Tensor& tensor, const char* op, const char* name) {
  TORCH_CHECK(tensor.defined(), op, ": expected ", name, ", got no tensor");
  TORCH_CHECK(tensor.device().is_cpu() || tensor.device().is_cuda(), op, ": expected ", name,
              " on the CPU or on a CUDA device, got it on ", tensor.device());
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, op, ": expected ", name,
              " of float32, bfloat16 or float16, got ", dtype);
  return format_of(dtype, op);
}

format::Format parse_format(std::string_view name, const char* op) {
  const std::optional<format::Format> format = format::parse_format(name);
  TORCH_CHECK(format && *format != format::Format::kE2m1 && *format != format::Format::kE8m0, op,
              ": expected a format of fp32, bf16, fp16, e4m3 or e5m2, got '", name, "'");
  return *format;
}

at::ScalarType dtype_of(format::Format format) {
  switch (format) {
    case format::Format::kFp32:
      return at::kFloat;
    case format::Format::kBf16:
      return at::kBFloat16;
    case format::Format::kFp16:
      return at::kHalf;
    case format::Format::kE4m3:
    case format::Format::kE5m2:
      return at::kByte;
    case format::Format::kE2m1:
    case format::Format::kE8m0:
      break;
  }
  runtime::unexpected("dtype_of", static_cast<int>(format));
}

void check_block(at::IntArrayRef block, const char* op) {
  TORCH_CHECK(block.size() == 2 && block[0] >= 0 && block[1] >= 0, op, ": expected two block sizes >= 0, got ", block);
}

at::Tensor as_matrix(const at::Tensor& x, const char* op) {
  TORCH_CHECK(x.dim() >= 1, op, ": expected a tensor of one dimension or more, got a scalar");
  if (x.dim() == 2) return x.contiguous();
  const int64_t cols = x.size(-1);
  // Not -1: an empty last dimension leaves the rows undetermined.
  int64_t rows = 1;
  for (int64_t dim = 0; dim < x.dim() - 1; ++dim) rows *= x.size(dim);
  return x.contiguous().view({rows, cols});
}

}  // namespace plimsoll::ops
