// State that C++ keeps between the calls of one product of a Python module. A module holds it as plain tensors, so that
// it can be copied, pickled and compiled: nine named buffers, which are all that lasts, and an empty tensor, its key.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <string>

#include "plimsoll/ops/linear/linear_scaling.h"

namespace plimsoll::bind {

inline constexpr size_t kStateTensors = 10;

// product: [key, input_scale, input_amax_history, input_step, weight_scale, ..., grad_output_step]. The state belongs
// to the key and ends with it; a key that is new (a copied module's, a loaded one's) starts one. Its slots are the
// buffers given, whichever they were before.
std::shared_ptr<ops::LinearState> layer_state(at::TensorList product);

// The product's path in reports of the watch.
void name_product(const at::Tensor& key, std::string name);

}  // namespace plimsoll::bind
