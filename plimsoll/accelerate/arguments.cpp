#include "plimsoll/accelerate/arguments.h"

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

bool is_writable(const at::Tensor& out, at::IntArrayRef sizes) {
  return out.sizes().equals(sizes) && out.is_contiguous();
}

}  // namespace plimsoll::acceleration
