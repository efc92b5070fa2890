// Kernels for CUDA devices as the host calls them: found by name in the code that the program carries, and queued on a stream.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/format/format.h"
#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/cuda/packed_arguments.h"

namespace plimsoll::kernels::cuda {

// Whether the program carries code for devices (PLIMSOLL_CUDA=ON).
bool has_device_code();

// SHA-256 of what device code is made of; empty without code.
std::string_view device_sources();
// "NVIDIA H100 80GB HBM3 at 1a2b3c4": the card and the commit of the report by which these very sources ran right
// (docs/results/gpu.json). Empty: there is none; launch() then wants PLIMSOLL_CUDA_UNVERIFIED=1 in the environment.
std::string_view verified_on();

// Whether launch() finds kernels that it may use, where there is a card.
bool can_launch();

// A stream of a device, which is the current one of the calling thread where that has one.
struct Stream {
  void* handle = nullptr;  // CUstream; nullptr: the default one
  int device = 0;
  int multiprocessors = 1;
};

// Multiprocessors of a device; asked of the driver once.
int multiprocessors_of(int device);

// Queues the kernel of that name, unless it has no blocks. Throws std::runtime_error where there is no such kernel, no code or no
// card.
void launch_packed(const Stream& stream, const std::string& name, Launch shape, std::vector<uint8_t> arguments);

template <class... Arguments>
void launch(const Stream& stream, const std::string& name, Launch shape, const Arguments&... arguments) {
  launch_packed(stream, name, shape, packed_arguments(arguments...));
}

// Queues *number = 0, if there is one: kernels raise an amax and do not overwrite it.
void clear(const Stream& stream, float* number);

// "OP_X" and "OP_X_Y", as kernels are named.
std::string kernel_name(const char* op, format::Format x);
std::string kernel_name(const char* op, format::Format x, format::Format y);

}  // namespace plimsoll::kernels::cuda
