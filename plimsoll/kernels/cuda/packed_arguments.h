// A kernel's arguments as the bytes that a device reads: each at a multiple of its alignment.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace plimsoll::kernels::cuda {

template <class... Arguments>
std::vector<uint8_t> packed_arguments(const Arguments&... arguments) {
  static_assert((std::is_trivially_copyable_v<Arguments> && ...));
  std::vector<uint8_t> bytes;
  [[maybe_unused]] const auto append = [&](const auto& argument) {
    constexpr size_t kAlign = alignof(decltype(argument));
    const size_t offset = (bytes.size() + kAlign - 1) / kAlign * kAlign;
    bytes.resize(offset + sizeof(argument));
    std::memcpy(bytes.data() + offset, &argument, sizeof(argument));
  };
  (append(arguments), ...);
  return bytes;
}

}  // namespace plimsoll::kernels::cuda
