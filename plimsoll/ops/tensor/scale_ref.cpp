#include "plimsoll/ops/tensor/scale_ref.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plimsoll/ops/tensor/read_together.h"

namespace plimsoll::ops {

std::vector<float> read_on_host(at::TensorList floats) {
  if (floats.empty()) return {};
  const at::RecordFunctionGuard quiet(/*is_enabled=*/false);  // a watch follows the model's operators
  std::vector<at::Tensor> flat;
  for (const at::Tensor& each : floats) flat.push_back(each.flatten());
  std::vector<float> all;
  for (const at::Tensor& each : read_together(flat)) {
    const float* begin = each.const_data_ptr<float>();
    all.insert(all.end(), begin, begin + each.numel());
  }
  return all;
}

ScaleRef::ScaleRef(at::Tensor memory) : memory_(std::move(memory)) {
  TORCH_CHECK(memory_.scalar_type() == at::kFloat && memory_.numel() == 1,
              "scale: expected one element of float32, got ", memory_.sizes(), " of ", memory_.scalar_type());
}

ScaleRef ScaleRef::of(float value) { return ScaleRef(at::full({1, 1}, value, at::kFloat)); }

const float* ScaleRef::data() const { return memory_.defined() ? memory_.const_data_ptr<float>() : nullptr; }

ScaleRef ScaleRef::copy() const {
  const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
  return ScaleRef(at::empty({1, 1}, memory_.options()).copy_(memory_));
}

ScaleRef ScaleRef::on(at::Device device) const {
  if (!defined() || memory_.device() == device) return *this;
  const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
  return ScaleRef(memory_.to(device, memory_.scalar_type(), /*non_blocking=*/true));
}

float ScaleRef::read_on_host() const { return memory_.defined() ? ops::read_on_host(memory_).front() : 1.0f; }

AmaxSlot::AmaxSlot(at::Device device) : memory_(at::empty({1}, at::TensorOptions(device).dtype(at::kFloat))) {}

AmaxSlot::AmaxSlot(at::Tensor memory) : memory_(std::move(memory)) {
  TORCH_CHECK(memory_.scalar_type() == at::kFloat && memory_.numel() == 1,
              "amax: expected one element of float32, got ", memory_.sizes(), " of ", memory_.scalar_type());
}

AmaxSlot AmaxSlot::of(float value) {
  AmaxSlot slot(at::kCPU);
  *slot.data() = value;
  return slot;
}

float* AmaxSlot::data() const { return memory_.defined() ? memory_.mutable_data_ptr<float>() : nullptr; }

float AmaxSlot::read_on_host() const { return ops::read_on_host(memory_).front(); }

}  // namespace plimsoll::ops
