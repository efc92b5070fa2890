#include "plimsoll/kernels/cuda/kernel_table.h"

namespace plimsoll::kernels::cuda {
namespace {

constexpr int kNotFound = 500;  // CUDA_ERROR_NOT_FOUND

}  // namespace

void* KernelTable::find(const Driver& driver, std::span<const void* const> images, const std::string& name) {
  if (const auto found = kernels_.find(name); found != kernels_.end()) return found->second;
  for (const void* image : images.subspan(libraries_.size())) {
    void* library = nullptr;
    check(driver.library_load_data(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0), "CUDA: loading kernels");
    libraries_.push_back(library);
  }
  for (void* library : libraries_) {
    void* kernel = nullptr;
    const int result = driver.library_get_kernel(&kernel, library, name.c_str());
    if (result == kNotFound) continue;
    check(result, name.c_str());
    return kernels_[name] = kernel;
  }
  return nullptr;
}

}  // namespace plimsoll::kernels::cuda
