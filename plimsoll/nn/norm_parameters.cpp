#include "plimsoll/nn/norm_parameters.h"

#include <ATen/ops/empty.h>

#include "plimsoll/nn/checks.h"

namespace plimsoll::nn {

void NormParameters::register_in(torch::nn::Module& module, const std::string& prefix, int64_t dim,
                                 const ops::NormOptions& options) {
  check_size("norm", "a size", dim, 1);
  check_epsilon("norm", options.epsilon);
  weight = module.register_parameter(prefix + "weight", at::empty({dim}));
  if (options.kind == Normalization::kLayerNorm) bias = module.register_parameter(prefix + "bias", at::empty({dim}));
  reset(options);
}

void NormParameters::reset(const ops::NormOptions& options) const {
  const at::NoGradGuard no_grad;
  weight.fill_(options.zero_centered ? 0 : 1);
  if (bias.defined()) bias.zero_();
}

}  // namespace plimsoll::nn
