// Torch's own operators in an audit, beside the library's.
#pragma once

#include <ATen/record_function.h>

namespace plimsoll::ops {

// While it lives, each product, norm, softmax and attention that torch computes on this thread adds a row to the audit
// in force, but for those inside another, and those that kernels of the library computed in torch's place.
class AuditedTorch {
 public:
  AuditedTorch();
  ~AuditedTorch();
  AuditedTorch(const AuditedTorch&) = delete;
  AuditedTorch& operator=(const AuditedTorch&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace plimsoll::ops
