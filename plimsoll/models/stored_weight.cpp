#include "plimsoll/models/stored_weight.h"

#include <ATen/ops/equal.h>

#include "plimsoll/io/error.h"

namespace plimsoll::models {

at::Tensor stored_weight(const io::HuggingFaceDirectory& directory, const std::string& name) {
  const at::Tensor tensor = directory.tensor(name);
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    io::fail("{}: tensor '{}': expected F32, BF16 or F16, got {}", directory.path().native(), name,
             io::safetensors_dtype(dtype));
  }
  return tensor;
}

bool has_own_head(const io::HuggingFaceDirectory& directory, const std::string& head, const std::string& embedding) {
  if (!directory.contains(head)) return false;
  if (!directory.contains(embedding)) return true;
  const at::Tensor own = directory.tensor(head), tied = directory.tensor(embedding);
  if (own.sizes() != tied.sizes() || own.scalar_type() != tied.scalar_type()) return true;
  const bool differs = !at::equal(own, tied);
  if (!differs) directory.releaser(head)();  // nothing reads the copy
  return differs;
}

void check_layers(const io::HuggingFaceDirectory& directory, const std::string& member, int64_t layers) {
  const auto tensors = static_cast<int64_t>(directory.names().size());
  if (layers > tensors) {
    io::fail("{}: {}: expected at most {}, as many as there are tensors, got {}",
             (directory.path() / "config.json").native(), member, tensors, layers);
  }
}

}  // namespace plimsoll::models
