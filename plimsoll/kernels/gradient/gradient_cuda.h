// gradient_pass() on a CUDA device, with the CPU's bits: the tensors' pointers are the device's. Queued on the stream. What a pass finds
// stays on the device until the caller copies it to the host.
#pragma once

#include "plimsoll/kernels/cuda/device_kernels.h"
#include "plimsoll/kernels/gradient/gradient.h"
#include "plimsoll/kernels/gradient/gradient_sample.h"

namespace plimsoll::kernels {

// Bytes of a pass: what it finds, and after that what it works in. Both begin at multiples of 8.
struct GradientMemory {
  int64_t findings = 0, scratch = 0;
};
GradientMemory gradient_memory(const GradientPass& args);

// memory: of the device, findings + scratch bytes; nullptr: nobody asks for the sums of this pass, which writes.
void gradient_pass(const GradientPass& args, void* memory, const cuda::Stream& stream);

// The summary of findings that have been copied to the host.
GradientSummary gradient_summary(const GradientPass& args, const void* findings);

// Counts a sample; the caller clears the counts before.
void gradient_histogram(const GradientSample& args, const cuda::Stream& stream);

}  // namespace plimsoll::kernels
