// An object of C++ that belongs to a tensor: it ends with the tensor, and a plain tensor that takes over another's data
// (x.set_data(y)) has the same object. torch has no public place for one. BackendMeta, which is for backends outside of
// torch, is a pointer in every TensorImpl that tensors on the CPU leave empty. Declared alike in torch 2.11 and 2.13.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace plimsoll::ops {

template <class T>
struct Attached final : c10::BackendMeta {
  explicit Attached(T object) : value(std::move(object)) {}
  T value;
};

// nullptr: nothing of this type is attached.
template <class T>
T* find_attached(const at::Tensor& tensor) {
  auto* const found = dynamic_cast<Attached<T>*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  return found == nullptr ? nullptr : &found->value;
}

// In the place of what was attached before.
template <class T>
T& attach(const at::Tensor& tensor, T object) {
  auto attached = c10::make_intrusive<Attached<T>>(std::move(object));
  T& value = attached->value;
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(attached));
  return value;
}

}  // namespace plimsoll::ops
