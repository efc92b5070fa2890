// Code for devices that the build put into the program, one image for each .cu file, and what is known of it. The build writes the
// source (cmake/PlimsollCuda.cmake). Private to this folder.
#pragma once

#include <span>
#include <string_view>

namespace plimsoll::kernels::cuda {

std::span<const void* const> device_images();  // empty without PLIMSOLL_CUDA=ON

}  // namespace plimsoll::kernels::cuda
