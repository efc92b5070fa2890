#include "plimsoll/models/tensors.h"

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "plimsoll/io/error.h"
#include "plimsoll/nn/scaled_module.h"

namespace plimsoll::models {

io::TensorMap tensors_of(const torch::nn::Module& model) {
  io::TensorMap tensors;
  for (const auto& item : model.named_parameters()) tensors.emplace(item.key(), item.value().detach());
  for (const auto& item : model.named_buffers()) tensors.emplace(item.key(), item.value().detach());
  return tensors;
}

io::TensorMap trained_tensors_of(const torch::nn::Module& model) {
  io::TensorMap tensors = tensors_of(model);
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad()) tensors.erase(item.key());
  }
  return tensors;
}

StoredTensors stored(const io::TensorMap& tensors) {
  StoredTensors result;
  for (const auto& [name, tensor] : tensors) {
    result[name] = {std::string(io::safetensors_dtype(tensor.scalar_type())), tensor.sizes().vec()};
  }
  return result;
}

void check_stored(const StoredTensors& tensors, const std::string& name, const std::vector<int64_t>& expected) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) io::fail("checkpoint: expected a tensor '{}', got none", name);
  const auto& [dtype, got] = found->second;
  if (got != expected) io::fail("checkpoint: expected '{}' of shape {}, got {}", name, expected, got);
  if (dtype != "F32" && dtype != "BF16" && dtype != "F16") {
    io::fail("checkpoint: expected '{}' in F32, BF16 or F16, got {}", name, dtype);
  }
}

void load_tensors(torch::nn::Module& model, const io::TensorMap& tensors) {
  const at::NoGradGuard no_grad;
  const auto find = [&](const std::string& name) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) io::fail("checkpoint: expected a tensor '{}', got none", name);
    return found->second;
  };
  const auto parameters = model.named_parameters();
  const auto buffers = model.named_buffers();
  for (const auto& [name, tensor] : tensors) {
    if (!parameters.contains(name) && !buffers.contains(name)) io::fail("checkpoint: unknown tensor '{}'", name);
  }
  for (const auto& item : parameters) {
    if (item.value().requires_grad() || tensors.contains(item.key())) at::Tensor(item.value()).copy_(find(item.key()));
  }
  for (const auto& item : buffers) {
    try {
      nn::load_buffer(item.key(), item.value(), find(item.key()));
    } catch (const c10::ValueError& error) {
      io::fail("checkpoint: {}", error.what_without_backtrace());
    }
  }
}

}  // namespace plimsoll::models
