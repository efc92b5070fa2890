#include "plimsoll/ops/linear/inference_weight.h"

#include <utility>

namespace plimsoll::ops {

std::optional<InferenceWeight::Kept> InferenceWeight::find(const at::Tensor& weight, const WeightKey& key,
                                                           const std::function<Made()>& make) {
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
    Made made = make();
    PackedWeight packed = pack_weight(made.operand);
    kept_ = {.made = std::move(made), .packed = std::move(packed)};
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
