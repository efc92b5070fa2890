#include "plimsoll/ops/tensor/seen_tensors.h"

#include <algorithm>
#include <cstring>

namespace plimsoll::ops {
namespace {

int64_t version_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor._version()); }

constexpr uint64_t kSamples = 64;

// Hash of values in places that follow no pattern of rows or columns: one in each of kSamples equal parts.
uint64_t sample_of(const at::Tensor& tensor) {
  const auto count = static_cast<uint64_t>(tensor.numel());
  if (count == 0 || !tensor.is_cpu()) return 0;
  const auto* const data = static_cast<const char*>(tensor.const_data_ptr());
  const size_t size = tensor.element_size();
  const bool is_contiguous = tensor.is_contiguous();
  const auto offset_of = [&](uint64_t place) {
    if (is_contiguous) return place;
    int64_t rest = static_cast<int64_t>(place), offset = 0;
    for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
      offset += rest % tensor.size(dim) * tensor.stride(dim);
      rest /= tensor.size(dim);
    }
    return static_cast<uint64_t>(offset);
  };
  const uint64_t samples = std::min(count, kSamples), part = count / samples;
  uint64_t hash = 0;
  for (uint64_t i = 0; i < samples; ++i) {
    const uint64_t draw = (i * 0x9E3779B97F4A7C15U) >> 32;  // 2^64 over the golden ratio
    uint64_t value = 0;
    std::memcpy(&value, data + offset_of(i * part + (draw * part >> 32)) * size, std::min(size, sizeof value));
    hash = (hash ^ value) * 0x100000001B3U;  // FNV-1a's prime
  }
  return hash;
}

}  // namespace

bool SeenTensors::remembers(at::TensorList tensors) const {
  const auto is_same = [](const at::Tensor& tensor, const Seen& seen) {
    return seen.tensor.lock().get() == tensor.unsafeGetTensorImpl() && seen.data == tensor.const_data_ptr() &&
           seen.version == version_of(tensor);
  };
  return isa_ == runtime::matmul_isa() &&
         std::equal(tensors.begin(), tensors.end(), seen_.begin(), seen_.end(), is_same);
}

bool SeenTensors::see(at::TensorList tensors) {
  const auto has_sample = [](const at::Tensor& tensor, const Seen& seen) { return seen.sample == sample_of(tensor); };
  if (remembers(tensors) && std::equal(tensors.begin(), tensors.end(), seen_.begin(), seen_.end(), has_sample))
    return true;
  forget();
  isa_ = runtime::matmul_isa();
  for (const at::Tensor& tensor : tensors) {
    seen_.push_back({.tensor = decltype(Seen::tensor)(tensor.getIntrusivePtr()),
                     .data = tensor.const_data_ptr(),
                     .version = version_of(tensor),
                     .sample = sample_of(tensor)});
  }
  return false;
}

void SeenTensors::hold(at::TensorList tensors) {
  held_.clear();
  for (const at::Tensor& tensor : tensors) held_.push_back(tensor.detach());
}

void SeenTensors::forget() {
  seen_.clear();
  held_.clear();
}

}  // namespace plimsoll::ops
