#include "plimsoll/ops/torch_internals/tracing.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace plimsoll::ops {

bool is_traced(const at::Tensor& x) {
  return x.is_meta() || x.key_set().has(c10::DispatchKey::Python) || x.key_set().has(c10::DispatchKey::Functionalize) ||
         c10::impl::TorchDispatchModeTLS::any_modes_set();
}

}  // namespace plimsoll::ops
