#include "plimsoll/models/overflowed_weights.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "plimsoll/format/format.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/quantize.h"

namespace plimsoll::models {

void OverflowedWeights::add(const std::string& name, const at::Tensor& stored, const at::Tensor& converted) {
  if (converted.numel() == 0 || std::isfinite(ops::amax(converted.view({-1, converted.size(-1)})))) return;
  const at::Tensor lost = at::isfinite(stored).logical_and(at::isfinite(converted).logical_not());
  const auto overflowed = lost.sum().item<int64_t>();
  if (overflowed == 0) return;  // they are not finite in the file
  dtype_ = format::info(ops::format_of(converted.scalar_type(), name.c_str())).name;
  tensors_.push_back({.name = name, .overflowed = overflowed, .elements = converted.numel()});
  count_ += overflowed;
}

std::string OverflowedWeights::text() const {
  constexpr size_t kNamed = 8;
  std::vector<Tensor> most = tensors_;
  std::stable_sort(most.begin(), most.end(),
                   [](const Tensor& a, const Tensor& b) { return a.overflowed > b.overflowed; });
  std::vector<std::string> parts;
  for (const Tensor& tensor : most) {
    if (parts.size() == kNamed) {
      parts.push_back(fmt::format("and in {} more", most.size() - kNamed));
      break;
    }
    parts.push_back(fmt::format("{} ({} of {})", tensor.name, tensor.overflowed, tensor.elements));
  }
  return fmt::format("{} {} beyond {} and became Inf: {}", count_, count_ == 1 ? "weight is" : "weights are", dtype_,
                     fmt::join(parts, ", "));
}

}  // namespace plimsoll::models
