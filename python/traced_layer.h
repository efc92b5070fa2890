// The layers where a compiler looks on: forward and backward are one operator each, whose results have shapes that
// follow from those of the arguments. Backward runs the layer again under the scales of its forward pass, so it has the
// bits of the layers that nobody traces, and costs their forward products once more.
#pragma once

#include "python/layer.h"

namespace plimsoll::python {

// Whether somebody traces what happens to x: a tensor without values, or a dispatch mode of Python.
bool is_traced(const at::Tensor& x);

ops::NormOutput run_traced_layer(const LayerInputs& inputs, const LayerCall& call, at::TensorList state);

}  // namespace plimsoll::python
