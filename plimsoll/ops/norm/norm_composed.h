// norm() in terms of torch's operators, for tensors without memory of their own.
#pragma once

#include "plimsoll/ops/norm/norm.h"

namespace plimsoll::ops {

NormOutput composed_norm(const NormInput& input, const NormOptions& options);

}  // namespace plimsoll::ops
