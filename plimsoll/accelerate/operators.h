// The operators of torch that have kernels of ours to try.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "plimsoll/accelerate/rules.h"
#include "plimsoll/ops/torch_internals/replaced_kernels.h"

namespace plimsoll::acceleration {

enum class Operator : uint8_t {
  kMm,
  kAddmm,
  kBmm,
  kBaddbmm,
  kAttention,
  kAttentionBackward,
  kGelu,
  kGeluBackward,
  kSilu,
  kSiluBackward,
  kSoftmax,
  kLogSoftmax,
  kLogSoftmaxBackward,
  kLayerNorm,
  kLayerNormBackward,
  kRmsNorm,
  kScaledMm,
  kFusedAdam,
};
inline constexpr std::array<std::string_view, 18> kOperatorNames = {"mm",
                                                                    "addmm",
                                                                    "bmm",
                                                                    "baddbmm",
                                                                    "attention",
                                                                    "attention_backward",
                                                                    "gelu",
                                                                    "gelu_backward",
                                                                    "silu",
                                                                    "silu_backward",
                                                                    "softmax",
                                                                    "log_softmax",
                                                                    "log_softmax_backward",
                                                                    "layer_norm",
                                                                    "layer_norm_backward",
                                                                    "rms_norm",
                                                                    "scaled_mm",
                                                                    "fused_adam"};

// Form of an operator of torch on the CPU: a kernel, or a composition of other operators that autograd sees through.
enum class Level : uint8_t { kKernel, kComposed };

// A variant of an operator. `attempt` puts results in the place of the arguments and returns kReplaced, or touches nothing.
struct Variant {
  const char* name;  // after aten::, with the overload
  Operator op;       // under which it is counted
  Outcome (*attempt)(ops::CallStack& stack);
  Level level = Level::kKernel;
};

std::vector<Variant> product_variants();
std::vector<Variant> attention_variants();
std::vector<Variant> scaled_product_variants();
std::vector<Variant> norm_variants();
std::vector<Variant> rms_norm_variants();
std::vector<Variant> activation_variants();
std::vector<Variant> softmax_variants();
std::vector<Variant> optimizer_variants();

}  // namespace plimsoll::acceleration
