#include "plimsoll/kernels/cuda/device_kernels.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "plimsoll/kernels/cuda/device_images.h"
#include "plimsoll/kernels/cuda/driver.h"

namespace plimsoll::kernels::cuda {
namespace {

class Kernels {
 public:
  void* find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (const auto found = kernels_.find(name); found != kernels_.end()) return found->second;
    if (!loaded_) load();
    for (void* library : libraries_) {
      void* kernel = nullptr;
      if (expect_driver().library_get_kernel(&kernel, library, name.c_str()) == 0) return kernels_[name] = kernel;
    }
    const char* const reason = has_device_code() ? "" : ": built without PLIMSOLL_CUDA=ON";
    throw std::runtime_error("CUDA: no kernel " + name + reason);
  }

 private:
  void load() {
    if (has_device_code() && !can_launch()) {
      throw std::runtime_error(
          "CUDA: these kernels have not run on a card as they are; PLIMSOLL_CUDA_UNVERIFIED=1 in the environment uses "
          "them nonetheless");
    }
    for (const void* image : device_images()) {
      void* library = nullptr;
      check(expect_driver().library_load_data(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0),
            "CUDA: loading kernels");
      libraries_.push_back(library);
    }
    loaded_ = true;
  }

  std::mutex mutex_;
  bool loaded_ = false;
  std::vector<void*> libraries_;
  std::map<std::string, void*> kernels_;
};

Kernels& kernels() {
  static Kernels all;
  return all;
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
  void* const kernel = kernels().find(name);
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
