// The layers where a compiler looks on: forward and backward are one operator each, whose results have shapes that
// follow from those of the arguments. Forward runs the layer that nobody traces and keeps its autograd node for
// backward, so both have its bits and cost what it costs, but for a copy of the input of a layer that saves it.
#pragma once

#include "plimsoll/bind/layer.h"

namespace plimsoll::bind {

ops::NormOutput run_traced_layer(const LayerInputs& inputs, const LayerCall& call, at::TensorList state);

}  // namespace plimsoll::bind
