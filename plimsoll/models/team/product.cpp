#include "plimsoll/models/team/product.h"

#include <algorithm>

#include "plimsoll/kernels/gemm/gemm_packed.h"

namespace plimsoll::models {

StepProduct::Columns StepProduct::part(int64_t index, int64_t parts) const {
  constexpr int64_t kPanel = kernels::kPackedColumns;
  const int64_t panels = (columns() + kPanel - 1) / kPanel;
  return {panels * index / parts * kPanel, std::min(panels * (index + 1) / parts * kPanel, columns())};
}

void StepProduct::multiply(const StepRows& rows, int64_t index, int64_t parts) const {
  const int64_t k = weight.data.size(1);
  const auto [begin, end] = part(index, parts);
  if (begin >= end) return;
  kernels::GemmOperand b = {
      .format = weight.format, .row_stride = k, .scale = ops::scale_view(weight, ops::Use::kAsStored)};
  const void* from = nullptr;
  if (packed.data.defined()) {
    from = kernels::gemm_packed_from(packed.data.const_data_ptr(), b, k, begin);
  } else {
    b.data = static_cast<const char*>(weight.data.const_data_ptr()) + begin * k * format::bytes(weight.format);
  }
  if (b.scale.data != nullptr) b.scale.data = static_cast<const float*>(b.scale.data) + begin * b.scale.row_stride;
  if (b.scale.tensor != nullptr) b.scale.tensor += begin * b.scale.tensor_row_stride;
  kernels::gemm({.a = {.data = rows.x, .format = rows.format, .row_stride = k},
                 .b = b,
                 .m = rows.count,
                 .n = end - begin,
                 .k = k,
                 .output = static_cast<char*>(rows.values) + begin * format::bytes(rows.format),
                 .output_format = rows.format,
                 .output_stride = columns(),
                 .epilogue = {.bias = bias.defined() ? bias.const_data_ptr<float>() + begin : nullptr},
                 .packed_b = from});
}

}  // namespace plimsoll::models
