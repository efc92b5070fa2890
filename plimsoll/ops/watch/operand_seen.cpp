#include "plimsoll/ops/watch/operand_seen.h"

namespace plimsoll::ops {

watch::Observation read_on_host(const OperandSeen& seen) {
  std::vector<at::Tensor> memory{seen.amax.memory()};
  if (seen.scale.defined()) memory.push_back(seen.scale.memory());
  const std::vector<float> values = read_on_host(memory);
  const float amax = values.front();
  return {.format = seen.format,
          .amax = amax,
          .inv_scale = seen.by_blocks         ? format::max_finite(seen.format) / amax
                       : seen.scale.defined() ? 1.0f / values.back()
                                              : 1.0f};
}

}  // namespace plimsoll::ops
