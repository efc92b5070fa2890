// Whether somebody traces what happens to a tensor: it has no values, or torch.compile, torch.func or a dispatch mode of
// Python's stands between the call and the kernels. torch.compiler.is_compiling() is for Python alone. Declared alike in
// torch 2.11 and 2.13.
#pragma once

#include <ATen/core/TensorBody.h>

namespace plimsoll::ops {

bool is_traced(const at::Tensor& x);

// Whether calls of this thread stand inside torch.func's transforms, for which autograd's functions in C++ have no rule.
bool is_transformed();

// Whether x has a tangent of forward-mode differentiation.
bool has_tangent(const at::Tensor& x);

}  // namespace plimsoll::ops
