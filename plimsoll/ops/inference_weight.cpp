#include "plimsoll/ops/inference_weight.h"

namespace plimsoll::ops {

std::optional<InferenceWeight::Kept> InferenceWeight::find(const at::Tensor& weight, const WeightKey& key,
                                                           const std::function<ScaledTensor()>& make) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool same = seen_ && seen_->_unsafe_get_target() == weight.unsafeGetTensorImpl() && key == key_;
  if (!same) {
    seen_.emplace(weight.getIntrusivePtr());
    key_ = key;
    kept_.reset();
    source_.reset();
    return std::nullopt;
  }
  if (!kept_) {
    const ScaledTensor operand = make();
    kept_ = {.operand = operand, .packed = pack_weight(operand)};
    source_ = weight.detach();
  }
  return kept_;
}

void InferenceWeight::release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  seen_.reset();
  kept_.reset();
  source_.reset();
}

}  // namespace plimsoll::ops
