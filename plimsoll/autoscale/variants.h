// Variants of an operator that write: into their first argument (add_), and into tensors of the caller's (add.out).
// Schemas find the variants, because names alone pair pow.Scalar, a number to the power of a tensor, with pow_.Scalar,
// a tensor to the power of a number.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace plimsoll::autoscale {

// Whether the schema says that the argument, or the result, is written.
bool is_written(const c10::Argument& argument);

struct Variants {
  std::vector<c10::OperatorHandle> in_place;  // of the same arguments, the first of which is written and returned
  std::vector<c10::OperatorHandle> out;       // of the same arguments and, after them, one to write for each result
};

// None of an operator that writes, or that makes a view.
Variants variants_of(const c10::OperatorHandle& functional);

}  // namespace plimsoll::autoscale
