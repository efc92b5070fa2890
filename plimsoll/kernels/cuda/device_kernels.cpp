#include "plimsoll/kernels/cuda/device_kernels.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string_view>

#include "plimsoll/kernels/cuda/device_images.h"
#include "plimsoll/kernels/cuda/driver.h"
#include "plimsoll/kernels/cuda/kernel_table.h"

namespace plimsoll::kernels::cuda {
namespace {

void* find_kernel(const std::string& name) {
  static std::mutex mutex;
  static KernelTable table;
  static bool allowed = false;
  const std::lock_guard lock(mutex);
  if (!allowed && has_device_code() && !can_launch()) {
    throw std::runtime_error(
        "CUDA: these kernels have not run on a card as they are; PLIMSOLL_CUDA_UNVERIFIED=1 in the environment uses "
        "them nonetheless");
  }
  allowed = true;
  if (void* const kernel = table.find(expect_driver(), device_images(), name)) return kernel;
  throw std::runtime_error("CUDA: no kernel " + name + (has_device_code() ? "" : ": built without PLIMSOLL_CUDA=ON"));
}

}  // namespace

bool has_device_code() { return !device_images().empty(); }

bool can_launch() {
  const char* const allowed = std::getenv("PLIMSOLL_CUDA_UNVERIFIED");
  return has_device_code() && (!verified_on().empty() || (allowed != nullptr && std::string_view(allowed) == "1"));
}

int multiprocessors_of(int device) {
  static std::mutex mutex;
  static std::map<int, int> counts;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = counts.try_emplace(device, 1);
  if (is_new) {
    check(expect_driver().device_get_attribute(&found->second, kMultiprocessorCount, device),
          "CUDA: multiprocessors of the device");
  }
  return found->second;
}

void launch_packed(const Stream& stream, const std::string& name, Launch shape, std::vector<uint8_t> arguments) {
  if (shape.blocks == 0) return;
  make_current(stream.device);
  void* const kernel = find_kernel(name);
  launch_kernel(kernel, name.c_str(), shape.blocks, shape.threads, arguments, stream.handle);
}

void clear(const Stream& stream, float* number) {
  if (number == nullptr) return;
  make_current(stream.device);
  check(expect_driver().memset_32_async(reinterpret_cast<uint64_t>(number), 0, 1, stream.handle), "CUDA: clearing");
}

std::string kernel_name(const char* op, format::Format x) {
  return std::string(op) + "_" + std::string(format::info(x).name);
}

std::string kernel_name(const char* op, format::Format x, format::Format y) {
  return kernel_name(op, x) + "_" + std::string(format::info(y).name);
}

}  // namespace plimsoll::kernels::cuda
