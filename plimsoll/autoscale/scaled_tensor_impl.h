// A tensor that is data in a narrow format and a scale, and that torch takes for a tensor of its logical dtype.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <optional>

#include "plimsoll/autoscale/scale.h"
#include "plimsoll/autoscale/session.h"
#include "plimsoll/ops/torch_internals/free_key.h"

namespace plimsoll::autoscale {

// Below autograd, above the backend. Of a tensor that carries it and is not ours, scaled_impl() says so.
inline constexpr c10::DispatchKey kScaledKey = ops::kFreeKey;

// FP8 codes that a product reads instead of the data of a whole memory: data = codes * 2^exponent.
struct Codes {
  at::Tensor data = {};  // float8_e4m3fn or float8_e5m2, in the order in which the elements lie
  int32_t exponent = 0;
};

// State that all views of one memory share: where one of them changes the exponent, all are rescaled.
struct SharedScale {
  at::Tensor base;  // the whole memory
  Scale scale;
  std::shared_ptr<Session> session;
  bool wide = false;       // stays in FP32: an optimizer's state, whose squares no 16 bits hold
  bool gradient = false;   // of a loss, or of what it was computed from
  bool parameter = false;  // of a module
  // The remainder of a parameter under Rounding::kRemainder, once it was written: what rounding cut off data, times
  // 2^kRemainderShift, in the same format. Together they have twice the bits. Undefined: nothing.
  at::Tensor remainder = {};
  Codes codes = {};  // of the data as they are; undefined: nobody has asked for them
};
inline constexpr int32_t kRemainderShift = 11;

class ScaledTensorImpl final : public c10::TensorImpl {
 public:
  // data: strided, on the CPU, a view of shared->base.
  ScaledTensorImpl(at::Tensor data, std::shared_ptr<SharedScale> shared, at::ScalarType logical,
                   at::Tensor scales = {});

  const at::Tensor& data() const { return data_; }
  const Scale& scale() const { return shared_->scale; }
  // The scales of a tensor of several, FP32: value = data * 2^exponent * scales, one for each of equal blocks of the data
  // (several_scales.h). Undefined: the power of two is all.
  const at::Tensor& scales() const { return scales_; }
  SharedScale& shared() const { return *shared_; }
  const std::shared_ptr<SharedScale>& shared_pointer() const { return shared_; }
  // Whether the tensor is the whole memory, as it lies.
  bool is_base() const {
    const at::Tensor& base = shared_->base;
    return data_.numel() == base.numel() && data_.sizes() == base.sizes() && data_.strides() == base.strides();
  }
  // Whether nothing but this tensor is in the memory.
  bool is_whole() const { return data_.numel() == shared_->base.numel(); }
  // Makes the tensor another view of its memory.
  void set_view(const at::Tensor& data);

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_metadata_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_metadata_change) const override;
  // tensor.data = other: a plain other is brought to the session's format.
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;

 private:
  // The end of torch's error "Cannot access storage of ...".
  const char* tensorimpl_type_name() const override {
    return "a scaled tensor: plimsoll.autoscale.value() is its value, pickles and files take pack() or a module's "
           "state_dict(), and torch.compile cannot look into one";
  }

  at::Tensor data_;
  std::shared_ptr<SharedScale> shared_;
  at::Tensor scales_;
};

// The same tensor, which a plain one may take for its data: x.set_data(carried(scaled)) leaves x the object that it is.
at::Tensor carried(const at::Tensor& scaled);

bool is_scaled(const at::Tensor& tensor);
// The implementation behind a scaled tensor.
ScaledTensorImpl& scaled_impl(const at::Tensor& tensor);

struct ScaledOptions {
  Scale scale = {};
  std::shared_ptr<Session> session;
  at::ScalarType logical = at::kFloat;
  bool wide = false;
  bool gradient = false;
};
// Options of a scaled tensor, for another scale.
ScaledOptions options_like(const at::Tensor& x, const Scale& scale);
// value = data * 2^scale.exponent, in memory of its own.
at::Tensor make_scaled(const at::Tensor& data, const ScaledOptions& options);
// The same memory under another logical dtype, to which no value is rounded.
at::Tensor with_logical(const at::Tensor& scaled, at::ScalarType logical);
// data: a view of the memory of `base`.
at::Tensor make_view(const at::Tensor& data, const ScaledTensorImpl& base);

// The operators called in its scope see plain tensors: neither ours nor autograd's kernels run.
class BelowAutoscale {
  const c10::impl::ExcludeDispatchKeyGuard guard_{c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                                  c10::autocast_dispatch_keyset | c10::DispatchKeySet(kScaledKey)};
};

}  // namespace plimsoll::autoscale
