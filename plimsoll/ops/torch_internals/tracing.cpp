#include "plimsoll/ops/torch_internals/tracing.h"

#include <ATen/FuncTorchTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Exception.h>

namespace plimsoll::ops {

bool is_traced(const at::Tensor& x) {
  return x.is_meta() || x.key_set().has(c10::DispatchKey::Python) || x.key_set().has(c10::DispatchKey::Functionalize) ||
         c10::impl::TorchDispatchModeTLS::any_modes_set();
}

bool is_transformed() {
  const auto& transforms = at::functorch::functorchTLSAccessor();
  if (!transforms) return false;
  try {  // that there is no transform is told by the absence of an error alone
    transforms->checkSupportsCppAutogradFunction();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

bool has_tangent(const at::Tensor& x) { return x._fw_grad(0).defined(); }

}  // namespace plimsoll::ops
