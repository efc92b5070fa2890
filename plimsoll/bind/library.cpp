// Operators that only a Python process needs: C++ calls the functions.
#include <torch/library.h>

#include <string>

#include "plimsoll/kernels/cuda/device_kernels.h"
#include "plimsoll/ops/memory/caching_allocator.h"

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  namespace cuda = plimsoll::kernels::cuda;
  library.def("cuda_sources() -> str", [] { return std::string(cuda::device_sources()); });
  library.def("cuda_verified_on() -> str", [] { return std::string(cuda::verified_on()); });
  library.def("cuda_can_launch() -> bool", [] { return cuda::can_launch(); });
  library.def("use_caching_allocator() -> ()", [] { plimsoll::use_caching_allocator(); });
}
