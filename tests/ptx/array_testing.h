// Arrays of kernels/testing.h in the memory of the interpreter.
#pragma once

#include "plimsoll/kernels/testing.h"
#include "tests/ptx/kernel_testing.h"

namespace plimsoll::ptx::testing {

inline std::string name_of(Format format) { return std::string(format::info(format).name); }

// An array on the device: a copy, or as many bytes that are not written yet.
inline uint64_t add(Memory& memory, const std::string& name, const kernels::testing::Array& array, Format format) {
  return memory.add(name, array.data(), static_cast<size_t>(array.count() * format::bytes(format)));
}
inline uint64_t add_unwritten(Memory& memory, const std::string& name, int64_t count, Format format) {
  return memory.add_unwritten(name, static_cast<size_t>(count * format::bytes(format)));
}
template <class T>
uint64_t address(T* p) {
  return reinterpret_cast<uint64_t>(p);
}

}  // namespace plimsoll::ptx::testing
