// A dispatch key below autograd and above the backends, under which kernels for tensors of our own are registered. The keys
// that torch gives out (PrivateUse1) stand for devices. Fake is the key of libtorch's FakeTensor mode for C++, which Python's
// FakeTensor does not use; that mode and our tensors cannot be used together. Declared alike in torch 2.11 and 2.13.
#pragma once

#include <c10/core/DispatchKey.h>

// For TORCH_LIBRARY_IMPL, which wants the name.
#define PLIMSOLL_FREE_KEY Fake

namespace plimsoll::ops {

inline constexpr c10::DispatchKey kFreeKey = c10::DispatchKey::PLIMSOLL_FREE_KEY;

}  // namespace plimsoll::ops
