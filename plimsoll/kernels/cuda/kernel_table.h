// Kernels by name in the device code that a program carries. Private to this folder.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "plimsoll/kernels/cuda/driver.h"

namespace plimsoll::kernels::cuda {

class KernelTable {
 public:
  // The kernel of that name, nullptr where no image has it; images are always the same. An image is loaded once, whatever
  // becomes of those after it. Throws std::runtime_error where loading or looking up fails.
  void* find(const Driver& driver, std::span<const void* const> images, const std::string& name);

 private:
  std::vector<void*> libraries_;  // of the first images
  std::map<std::string, void*> kernels_;
};

}  // namespace plimsoll::kernels::cuda
