// CUDA's driver, loaded when it is first asked for: nothing of CUDA is needed to build a program or to start it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace plimsoll::kernels::cuda {

// The functions of the CUDA Driver API that are called here (NVIDIA, "CUDA Driver API" 13.0), by their names without the
// prefix. Handles are pointers; a result other than 0 is an error.
struct Driver {
  int (*init)(unsigned flags);
  int (*get_error_string)(int error, const char** text);
  int (*driver_get_version)(int* version);
  int (*device_get_count)(int* count);
  int (*device_get_name)(char* name, int length, int device);
  int (*device_get_attribute)(int* value, int attribute, int device);
  int (*primary_context_retain)(void** context, int device);
  int (*context_get_current)(void** context);
  int (*context_set_current)(void* context);
  int (*library_load_data)(void** library, const void* code, void* jit_options, void** jit_values, unsigned jit_count,
                           void* options, void** values, unsigned count);
  int (*library_get_kernel)(void** kernel, void* library, const char* name);
  int (*launch_kernel)(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters,
                       void** extra);
  int (*memset_32_async)(uint64_t address, unsigned value, size_t count, void* stream);
  int (*memory_allocate)(uint64_t* address, size_t bytes);
  int (*memory_free)(uint64_t address);
  int (*copy_to_device)(uint64_t device, const void* host, size_t bytes);
  int (*copy_to_host)(void* host, uint64_t device, size_t bytes);
  int (*context_synchronize)();
};

// nullptr where there is no driver, or no card that it knows.
const Driver* driver();

// The driver. Throws std::runtime_error where there is none, or no card.
const Driver& expect_driver();

// Makes the primary context of the device the thread's, unless that has one: on a thread that has not called CUDA yet, as those of a
// backward pass, none is.
void make_current(int device);

// Queues a kernel with the bytes of its arguments (packed_arguments.h). name: for an error.
void launch_kernel(void* kernel, const char* name, uint32_t blocks, uint32_t threads, std::vector<uint8_t>& arguments,
                   void* stream);

// Throws std::runtime_error with what was asked for and the driver's words, for a result that is not 0.
void check(int result, const char* what);

// Attributes of a device, by the numbers of CUdevice_attribute.
inline constexpr int kMultiprocessorCount = 16, kCapabilityMajor = 75, kCapabilityMinor = 76;

}  // namespace plimsoll::kernels::cuda
