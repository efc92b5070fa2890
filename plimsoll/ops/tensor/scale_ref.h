// Scales and amaxes in memory of the device that holds the data. Kernels read and write them there; neither type
// converts to a number, and the host gets one by read_on_host alone, which is counted: on another device each such read
// waits for all that was queued before it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <vector>

namespace plimsoll::ops {

// The elements of fp32 tensors, one after another, in one read of each device.
std::vector<float> read_on_host(at::TensorList floats);

// The scale of a whole tensor, or none, which counts as 1.
class ScaleRef {
 public:
  ScaleRef() = default;
  // fp32, one element. The memory is shared.
  explicit ScaleRef(at::Tensor memory);
  // A new scale on the CPU.
  static ScaleRef of(float value);

  bool defined() const { return memory_.defined(); }
  const float* data() const;  // for kernels; nullptr: none
  const at::Tensor& memory() const { return memory_; }
  at::Device device() const { return memory_.device(); }
  // The same value in memory of its own, which later changes of this one do not reach.
  ScaleRef copy() const;
  // The same value on that device, for which no host waits.
  ScaleRef on(at::Device device) const;

  float read_on_host() const;  // 1 where there is none

 private:
  at::Tensor memory_;
};

// The place where a kernel writes an amax: NaN > Inf > finite.
class AmaxSlot {
 public:
  AmaxSlot() = default;  // nowhere
  // New memory, for kernels whose data is on this device.
  explicit AmaxSlot(at::Device device);
  // fp32, one element. The memory is shared.
  explicit AmaxSlot(at::Tensor memory);
  static AmaxSlot of(float value);

  bool defined() const { return memory_.defined(); }
  float* data() const;  // for kernels; nullptr: nowhere
  const at::Tensor& memory() const { return memory_; }

  float read_on_host() const;

 private:
  at::Tensor memory_;
};

}  // namespace plimsoll::ops
