#include "plimsoll/models/stored_weight.h"

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

void check_layers(const io::HuggingFaceDirectory& directory, const std::string& member, int64_t layers) {
  const auto tensors = static_cast<int64_t>(directory.names().size());
  if (layers > tensors) {
    io::fail("{}: {}: expected at most {}, as many as there are tensors, got {}",
             (directory.path() / "config.json").native(), member, tensors, layers);
  }
}

}  // namespace plimsoll::models
