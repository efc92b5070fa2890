#include "plimsoll/kernels/cuda/driver.h"

#include <dlfcn.h>

#include <array>
#include <stdexcept>
#include <string>

namespace plimsoll::kernels::cuda {
namespace {

// CU_LAUNCH_PARAM_*, the keys of cuLaunchKernel's list of extra options.
void* const kArgumentsFollow = reinterpret_cast<void*>(1);
void* const kBytesFollow = reinterpret_cast<void*>(2);
void* const kEnd = nullptr;

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The names with the versions that CUDA 12 and later export.
bool load(Driver& driver) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  int devices = 0;
  return library != nullptr && find(library, "cuInit", driver.init) &&
         find(library, "cuGetErrorString", driver.get_error_string) &&
         find(library, "cuDriverGetVersion", driver.driver_get_version) &&
         find(library, "cuDeviceGetCount", driver.device_get_count) &&
         find(library, "cuDeviceGetName", driver.device_get_name) &&
         find(library, "cuDeviceGetAttribute", driver.device_get_attribute) &&
         find(library, "cuDevicePrimaryCtxRetain", driver.primary_context_retain) &&
         find(library, "cuCtxGetCurrent", driver.context_get_current) &&
         find(library, "cuCtxSetCurrent", driver.context_set_current) &&
         find(library, "cuLibraryLoadData", driver.library_load_data) &&
         find(library, "cuLibraryGetKernel", driver.library_get_kernel) &&
         find(library, "cuLaunchKernel", driver.launch_kernel) &&
         find(library, "cuMemsetD32Async", driver.memset_32_async) &&
         find(library, "cuMemAlloc_v2", driver.memory_allocate) && find(library, "cuMemFree_v2", driver.memory_free) &&
         find(library, "cuMemcpyHtoD_v2", driver.copy_to_device) &&
         find(library, "cuMemcpyDtoH_v2", driver.copy_to_host) &&
         find(library, "cuCtxSynchronize", driver.context_synchronize) && driver.init(0) == 0 &&
         driver.device_get_count(&devices) == 0 && devices > 0;
}

}  // namespace

const Driver* driver() {
  static Driver functions;
  static const bool loaded = load(functions);
  return loaded ? &functions : nullptr;
}

const Driver& expect_driver() {
  if (const Driver* const found = driver()) return *found;
  throw std::runtime_error("CUDA: expected a card and its driver (libcuda.so.1), found none");
}

void make_current(int device) {
  void* context = nullptr;
  check(expect_driver().context_get_current(&context), "CUDA: the thread's context");
  if (context != nullptr) return;
  check(expect_driver().primary_context_retain(&context, device), "CUDA: the device's context");
  check(expect_driver().context_set_current(context), "CUDA: the device's context");
}

void launch_kernel(void* kernel, const char* name, uint32_t blocks, uint32_t threads, std::vector<uint8_t>& arguments,
                   void* stream) {
  size_t bytes = arguments.size();
  std::array<void*, 5> extra = {kArgumentsFollow, arguments.data(), kBytesFollow, &bytes, kEnd};
  check(expect_driver().launch_kernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, nullptr, extra.data()), name);
}

void check(int result, const char* what) {
  if (result == 0) return;
  const char* text = nullptr;
  if (driver() == nullptr || driver()->get_error_string(result, &text) != 0 || text == nullptr) text = "no text";
  throw std::runtime_error(std::string(what) + ": CUDA error " + std::to_string(result) + " (" + text + ")");
}

}  // namespace plimsoll::kernels::cuda
