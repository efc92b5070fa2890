#include "plimsoll/ops/tensor/transposed.h"

#include <ATen/ops/empty.h>

#include "plimsoll/kernels/transpose/transpose.h"
#include "plimsoll/kernels/transpose/transpose_cuda.h"
#include "plimsoll/ops/tensor/device_stream.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {

at::Tensor transposed(const at::Tensor& x) {
  const at::Tensor dense = x.contiguous();
  at::Tensor output = at::empty({x.size(1), x.size(0)}, x.options());
  const watch::Span span("transpose", {.bytes = traffic(dense, output)});
  const kernels::Transpose args{.x = dense.const_data_ptr(),
                                .element_bytes = static_cast<int64_t>(x.element_size()),
                                .rows = x.size(0),
                                .cols = x.size(1),
                                .x_stride = x.size(1),
                                .output = output.mutable_data_ptr(),
                                .output_stride = x.size(0)};
  on_device_of(x, [&](auto... stream) { kernels::transpose(args, stream...); });
  return output;
}

}  // namespace plimsoll::ops
