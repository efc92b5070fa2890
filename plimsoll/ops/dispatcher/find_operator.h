// An operator of ours in torch's dispatcher, by its name and signature.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace plimsoll::ops {

// Defined beside the registrations: whoever looks for an operator links them.
c10::OperatorHandle find_operator(const char* name);

template <class Function>
c10::TypedOperatorHandle<Function> find_operator(const char* name) {
  return find_operator(name).typed<Function>();
}

}  // namespace plimsoll::ops
