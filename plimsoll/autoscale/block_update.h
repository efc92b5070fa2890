// A pass over a parameter in blocks: a block's values in FP32, of data and remainders, stay in the cache while they are
// updated and written back. For optimizers' steps.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <vector>

#include "plimsoll/autoscale/scaled_tensor_impl.h"

namespace plimsoll::autoscale {

// New values of elements [begin, begin + count) of the memory in place of the old ones.
using UpdateBlock = std::function<void(int64_t begin, int64_t count, float* values)>;

// Whether a scaled parameter owns its memory and can be updated by blocks. Not where the session rounds by chance, measures,
// or counts what is lost.
bool can_update_blocks(const at::Tensor& parameter);
// Calls update for all blocks, on several threads. The exponent changes where the new values ask for it.
void update_blocks(const at::Tensor& parameter, const UpdateBlock& update);

// The data of a scaled tensor; a plain one is its own.
const at::Tensor& data_of(const at::Tensor& x);
// The address of an element of the tensor's memory; nullptr if the tensor is undefined.
char* at_element(const at::Tensor& x, int64_t index);
// Whether a power of two is one factor of FP32 without loss.
bool is_factor(int32_t exponent);

// An optimizer's state beside a parameter whose data are `like`: FP32, plain or scaled, in the same order.
bool is_state_of(const at::Tensor& state, const at::Tensor& like);
// The state's memory, which holds its values (not data) from now on.
at::Tensor values_of_state(const at::Tensor& state);
// FP32, or scaled, in the same order.
bool is_gradient_of(const at::Tensor& gradient, const at::Tensor& like);
// The factor by which the gradient's data are to be multiplied.
float factor_of(const at::Tensor& gradient);

}  // namespace plimsoll::autoscale
