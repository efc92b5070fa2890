#include "plimsoll/accelerate/arguments.h"

#include <vector>

namespace plimsoll::acceleration {
namespace {

// Names of dimensions, which results would inherit; torch 2.13 no longer has them.
template <class Tensor>
bool has_names(const Tensor& x) {
  if constexpr (requires { x.has_names(); }) return x.has_names();
  return false;
}

}  // namespace

bool has_values(const at::Tensor& x) {
  if (!x.defined() || !x.device().is_cpu() || x.layout() != at::kStrided || !x.has_storage()) return false;
  const at::ScalarType dtype = x.scalar_type();
  return (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) && !has_names(x);
}

bool is_last_dimension(const c10::IValue& shape, const at::Tensor& x) {
  if (!shape.isIntList() || x.dim() == 0 || x.numel() == 0) return false;
  const std::vector<int64_t> sizes = shape.toIntVector();
  return sizes.size() == 1 && sizes.front() == x.size(-1);
}

bool is_writable(const at::Tensor& out, at::IntArrayRef sizes) {
  return out.sizes().equals(sizes) && out.is_contiguous();
}

}  // namespace plimsoll::acceleration
