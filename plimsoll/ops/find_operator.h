// An operator of ours in torch's dispatcher, by its name and signature.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace plimsoll::ops {

template <class Function>
c10::TypedOperatorHandle<Function> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

}  // namespace plimsoll::ops
