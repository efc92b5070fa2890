// A kernel's run in the interpreter, and its memory beside the CPU kernel's.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "plimsoll/format/codec.h"
#include "plimsoll/kernels/cuda/launch.h"
#include "plimsoll/kernels/cuda/packed_arguments.h"
#include "tests/ptx/card.h"
#include "tests/ptx/machine.h"

namespace plimsoll::ptx::testing {

using format::Format;

// Few, so that a block takes several units of work.
inline constexpr int kMultiprocessors = 2;

// Folder of nvcc's PTX; empty without nvcc. The environment names it where the tests run on another machine than built them.
inline std::string ptx_directory() {
  const char* const given = std::getenv("PLIMSOLL_PTX_DIRECTORY");
  return given != nullptr ? given : PLIMSOLL_PTX_DIRECTORY;
}

inline const Module& module_of(const std::string& name) {
  static std::map<std::string, Module> modules;
  const auto found = modules.find(name);
  if (found != modules.end()) return found->second;
  return modules[name] = read_module(ptx_directory() + "/" + name + ".ptx");
}

// The PTX of plimsoll/kernels/NAME/NAME.cu, or of tests/ptx/NAME.cu. Skips the test where there is no nvcc.
#define PLIMSOLL_MODULE(name)                                       \
  if (ptx_directory().empty()) GTEST_SKIP() << "no nvcc was found"; \
  const Module& module = module_of(name)

// Seeds of one test differ, so that its kernels run in many orders.
inline uint32_t next_seed() {
  static uint32_t seed = 0;
  return ++seed;
}

template <class... Args>
void interpret(const Kernel& kernel, Memory& memory, kernels::Launch shape, const Args&... args) {
  Machine(kernel, memory, next_seed()).run({shape.blocks, shape.threads}, kernels::cuda::packed_arguments(args...));
}

// In the interpreter, or on the card that is in use instead.
template <class... Args>
void launch(const Kernel& kernel, Memory& memory, kernels::Launch shape, const Args&... args) {
  Card* const card = Card::in_use();
  if (card == nullptr) return interpret(kernel, memory, shape, args...);
  card->run(kernel.name, memory, shape, kernels::cuda::packed_arguments(args...));
}

// The text of the fault that the interpreter ends with; empty if there is none.
template <class... Args>
std::string fault_of(const Kernel& kernel, Memory& memory, kernels::Launch shape, const Args&... args) {
  try {
    interpret(kernel, memory, shape, args...);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return {};
}

template <class T>
T* pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// Name of the first byte that differs; empty if none does.
inline std::string difference(const uint8_t* got, const uint8_t* expected, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    if (got[i] != expected[i]) {
      return "byte " + std::to_string(i) + ": expected " + std::to_string(expected[i]) + ", got " +
             std::to_string(got[i]);
    }
  }
  return {};
}

// The same for elements of a format, where any NaN counts as any other: a card's arithmetic makes another NaN than a CPU's.
inline std::string difference(const uint8_t* got, const uint8_t* expected, int64_t count, Format format) {
  const auto size = static_cast<size_t>(format::bytes(format));
  for (int64_t i = 0; i < count; ++i) {
    uint32_t one = 0, other = 0;
    std::memcpy(&one, got + static_cast<size_t>(i) * size, size);
    std::memcpy(&other, expected + static_cast<size_t>(i) * size, size);
    const float value = format::decode(format, one), wanted = format::decode(format, other);
    if (one != other && !(std::isnan(value) && std::isnan(wanted))) {
      return "element " + std::to_string(i) + ": expected code " + std::to_string(other) + " (" +
             std::to_string(wanted) + "), got " + std::to_string(one) + " (" + std::to_string(value) + ")";
    }
  }
  return {};
}

// Rows of a matrix in device memory, whose elements between rows stay unwritten.
struct Matrix {
  int64_t rows, cols, stride;
  Format format;
  size_t bytes() const {
    return rows == 0 ? 0 : static_cast<size_t>(((rows - 1) * stride + cols) * format::bytes(format));
  }
};

// Matrices row by row; exact: NaN byte by byte, too.
inline void expect_same(const Matrix& matrix, const uint8_t* got, const void* expected, bool exact,
                        const std::string& where) {
  const auto* wanted = static_cast<const uint8_t*>(expected);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    const auto offset = static_cast<size_t>(row * matrix.stride * format::bytes(matrix.format));
    const std::string found = exact ? difference(got + offset, wanted + offset,
                                                 static_cast<size_t>(matrix.cols * format::bytes(matrix.format)))
                                    : difference(got + offset, wanted + offset, matrix.cols, matrix.format);
    ASSERT_EQ(found, "") << where << ", row " << row;
  }
}

}  // namespace plimsoll::ptx::testing
