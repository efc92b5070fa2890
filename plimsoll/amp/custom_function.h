// torch.amp.custom_fwd and custom_bwd for a torch::autograd::Function: its backward pass runs under the autocast of its
// forward pass.
//
//   static at::Tensor forward(AutogradContext* context, at::Tensor a, at::Tensor b) {
//     amp::CustomForward scope(*context, at::kCPU);                // or, with casts: (*context, at::kCPU, at::kFloat)
//     a = scope.cast(a), b = scope.cast(b);
//     ...
//   }
//   static variable_list backward(AutogradContext* context, variable_list grads) {
//     const amp::Autocast scope = amp::autocast_of_forward(*context);
//     ...
//   }
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "plimsoll/amp/autocast.h"

namespace plimsoll::amp {

class CustomForward {
 public:
  // cast_inputs: where autocast is on, it is off inside, and cast() gives that dtype.
  CustomForward(torch::autograd::AutogradContext& context, at::DeviceType device,
                std::optional<at::ScalarType> cast_inputs = std::nullopt);

  // The input in the dtype of the cast, if it is a floating-point tensor on the device and not fp64; others as they are.
  at::Tensor cast(const at::Tensor& input) const;

 private:
  at::DeviceType device_;
  bool casts_;
  std::optional<at::ScalarType> dtype_;
  Autocast scope_;
};

// Throws c10::Error if forward opened no CustomForward.
Autocast autocast_of_forward(torch::autograd::AutogradContext& context);

}  // namespace plimsoll::amp
