#include "plimsoll/ops/watch/shadow_window.h"

#include <algorithm>

#include "plimsoll/ops/watch/watch_facts.h"

namespace plimsoll::ops {

void ShadowWindow::add(ShadowedOp op) {
  if (steps_left_ == 0) return;
  const bool is_step = !op.path.empty();
  steps_kept_ += is_step ? 1 : 0;
  std::vector<uint32_t> versions = versions_of(op.operands);
  kept_.push_back({std::move(op), std::move(versions)});
  while (steps_kept_ > kBefore) {
    steps_kept_ -= kept_.front().op.path.empty() ? 0 : 1;
    kept_.pop_front();
  }
  if (incidents_.none()) return;
  for (const Kept& kept : kept_) run(kept);
  kept_.clear();
  steps_kept_ = 0;
  steps_left_ -= is_step ? 1 : 0;
  if (steps_left_ == 0) wide_.clear();
}

std::vector<uint32_t> ShadowWindow::versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<uint32_t> versions;
  for (const at::Tensor& tensor : tensors) {
    versions.push_back(tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version()));
  }
  return versions;
}

void ShadowWindow::run(const Kept& kept) {
  const bool may_run = kept.op.again && versions_of(kept.op.operands) == kept.versions &&
                       std::ranges::none_of(kept.op.operands, is_freed);
  const std::vector<at::Tensor> wide =
      may_run ? kept.op.again([this](const at::Tensor& tensor) { return wide_of(tensor); }) : std::vector<at::Tensor>();
  if (wide.size() != kept.op.results.size()) {
    if (!kept.op.path.empty()) forget(kept.op.results);  // a view writes nothing
    return;
  }
  for (size_t i = 0; i < wide.size(); ++i) wide_.emplace_back(kept.op.results[i], wide[i]);
  if (!kept.op.path.empty()) report(kept.op, wide);
}

// The one of several results that comes nearest to the end of its format.
void ShadowWindow::report(const ShadowedOp& op, const std::vector<at::Tensor>& wide) {
  const auto larger = [](const at::Tensor& a, const at::Tensor& b) { return amax_of_any(a) < amax_of_any(b); };
  const auto largest = static_cast<size_t>(std::max_element(wide.begin(), wide.end(), larger) - wide.begin());
  const at::Tensor& result = op.results[largest];
  if (!is_real(result) || is_freed(result) || wide[largest].sizes() != result.sizes()) return;
  incidents_.around({op.path, amax_of_any(result), compare(wide[largest], result)});
}

void ShadowWindow::forget(const std::vector<at::Tensor>& overwritten) {
  std::erase_if(wide_, [&](const auto& entry) {
    return std::any_of(overwritten.begin(), overwritten.end(),
                       [&](const at::Tensor& tensor) { return tensor.is_alias_of(entry.first); });
  });
}

at::Tensor ShadowWindow::wide_of(const at::Tensor& tensor) const {
  for (auto entry = wide_.rbegin(); entry != wide_.rend(); ++entry) {
    const auto& [narrow, wide] = *entry;
    if (narrow.const_data_ptr() != tensor.const_data_ptr() || narrow.scalar_type() != tensor.scalar_type()) continue;
    if (narrow.sizes() == tensor.sizes() && narrow.strides() == tensor.strides()) return wide;
    const bool same_elements = narrow.numel() == tensor.numel() && narrow.is_contiguous() && tensor.is_contiguous();
    if (same_elements) return wide.reshape(tensor.sizes());
  }
  return tensor.to(at::kFloat);
}

}  // namespace plimsoll::ops
