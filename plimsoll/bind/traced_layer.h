// The layers where a compiler looks on: forward and backward are one operator each, whose results have shapes that
// follow from those of the arguments. Forward runs the layer that nobody traces and keeps its autograd node for
// backward, so both have its bits and cost what it costs, but for a copy of the input of a layer that saves it.
#pragma once

#include "plimsoll/bind/layer.h"

namespace plimsoll::bind {

// Whether somebody traces what happens to x: a tensor without values, or a dispatch mode of Python.
bool is_traced(const at::Tensor& x);

ops::NormOutput run_traced_layer(const LayerInputs& inputs, const LayerCall& call, at::TensorList state);

}  // namespace plimsoll::bind
