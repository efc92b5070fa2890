#include "plimsoll/autoscale/scaled_tensor_impl.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include "plimsoll/autoscale/storage.h"
#include "plimsoll/ops/torch_internals/attached.h"

namespace plimsoll::autoscale {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

DispatchKeySet scaled_keys() {
  return DispatchKeySet({DispatchKey::CPU, kScaledKey, DispatchKey::AutogradCPU, DispatchKey::ADInplaceOrView});
}

// Attached to a scaled tensor: the plain one that takes over its data has it then.
using Carried = c10::intrusive_ptr<ScaledTensorImpl>;

// Another tensor of the memory of `base`. As torch's views, it is one of inference mode only where that one is.
at::Tensor make_another(const ScaledTensorImpl& base, const at::Tensor& data, at::ScalarType logical,
                        const at::Tensor& scales = {}) {
  const c10::InferenceMode mode(!base.key_set().has(DispatchKey::ADInplaceOrView));
  return at::Tensor(c10::make_intrusive<ScaledTensorImpl>(data, base.shared_pointer(), logical, scales));
}

c10::intrusive_ptr<ScaledTensorImpl> copy_of(const ScaledTensorImpl& impl) {
  return c10::make_intrusive<ScaledTensorImpl>(impl.data(), impl.shared_pointer(),
                                               c10::typeMetaToScalarType(impl.dtype()), impl.scales());
}

}  // namespace

ScaledTensorImpl::ScaledTensorImpl(at::Tensor data, std::shared_ptr<SharedScale> shared, at::ScalarType logical,
                                   at::Tensor scales)
    : TensorImpl(scaled_keys(), c10::scalarTypeToTypeMeta(logical), data.device()),
      data_(std::move(data)),
      shared_(std::move(shared)),
      scales_(std::move(scales)) {
  set_sizes_and_strides(data_.sizes(), data_.strides(), data_.storage_offset());
  set_storage_access_should_throw();
}

c10::intrusive_ptr<c10::TensorImpl> ScaledTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                              bool allow_metadata_change) const {
  auto copy = copy_of(*this);
  copy_tensor_metadata(this, copy.get(), version, allow_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> ScaledTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                              bool allow_metadata_change) const {
  auto copy = copy_of(*this);
  copy_tensor_metadata(this, copy.get(), std::move(version), allow_metadata_change);
  return copy;
}

void ScaledTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  at::Tensor other(impl);
  if (!is_scaled(other)) other = as_scaled(other, shared_->session);
  const ScaledTensorImpl& source = scaled_impl(other);
  copy_tensor_metadata(&source, this, version_counter(), allow_tensor_metadata_change());
  data_ = source.data_;
  shared_ = source.shared_;
  scales_ = source.scales_;
}

void ScaledTensorImpl::set_view(const at::Tensor& data) {
  data_ = data;
  set_sizes_and_strides(data.sizes(), data.strides(), data.storage_offset());
}

at::Tensor carried(const at::Tensor& scaled) {
  const ScaledTensorImpl& impl = scaled_impl(scaled);
  at::Tensor result(copy_of(impl));
  ops::attach<Carried>(result, copy_of(impl));
  return result;
}

bool is_scaled(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(kScaledKey); }

ScaledTensorImpl& scaled_impl(const at::Tensor& tensor) {
  auto* impl = dynamic_cast<ScaledTensorImpl*>(tensor.unsafeGetTensorImpl());
  if (impl == nullptr) {
    if (const Carried* const carried = ops::find_attached<Carried>(tensor)) return **carried;
  }
  TORCH_CHECK(impl != nullptr,
              "autoscale: expected a scaled tensor, got one of libtorch's FakeTensor mode, or a plain one into whose "
              ".data a scaled one was put; the two cannot be used together");
  return *impl;
}

ScaledOptions options_like(const at::Tensor& x, const Scale& scale) {
  const SharedScale& shared = scaled_impl(x).shared();
  return {scale, shared.session, x.scalar_type(), shared.wide, shared.gradient};
}

at::Tensor make_scaled(const at::Tensor& data, const ScaledOptions& options) {
  auto shared = std::make_shared<SharedScale>(SharedScale{.base = data,
                                                          .scale = options.scale,
                                                          .session = options.session,
                                                          .wide = options.wide,
                                                          .gradient = options.gradient});
  return at::Tensor(c10::make_intrusive<ScaledTensorImpl>(data, std::move(shared), options.logical));
}

at::Tensor with_logical(const at::Tensor& scaled, at::ScalarType logical) {
  const ScaledTensorImpl& impl = scaled_impl(scaled);
  return make_another(impl, impl.data(), logical, impl.scales());
}

at::Tensor make_view(const at::Tensor& data, const ScaledTensorImpl& base) {
  return make_another(base, data, c10::typeMetaToScalarType(base.dtype()));
}

}  // namespace plimsoll::autoscale
