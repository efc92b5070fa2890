// One case of an activation, its inputs, and what the kernel gives for them. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "plimsoll/kernels/activation/activation.h"
#include "plimsoll/kernels/testing.h"

namespace plimsoll::kernels::testing {

struct Case {
  Activation kind = Activation::kGelu;
  int64_t rows = 3, cols = 37;
  Format x_format = Format::kFp32, dy_format = Format::kFp32, out_format = Format::kFp32;
  float scale = 1.0f;
  bool column_sum = true;
  std::optional<ActivationParameters> parameters = {};

  ActivationSpec spec() const {
    ActivationSpec activation = kind;
    activation.parameters = parameters.value_or(activation.parameters);
    return activation;
  }
  int64_t x_cols() const { return is_gated(kind) ? 2 * cols : cols; }
  int64_t gate(int64_t row, int64_t col) const { return row * x_cols() + col; }
  int64_t value(int64_t row, int64_t col) const { return gate(row, col) + cols; }
};

inline std::string describe(const Case& c) {
  return std::string(info(c.kind).name) + " " + std::to_string(c.rows) + " x " + std::to_string(c.cols) + " " +
         std::string(format::info(c.x_format).name) + " to " + std::string(format::info(c.out_format).name);
}

struct Inputs {
  Array x, dy;
  explicit Inputs(const Case& c)
      : x(c.x_format, sample(c.rows * c.x_cols(), 1, 0.0f, 3.0f)), dy(c.dy_format, sample(c.rows * c.cols, 2)) {}
};

struct Forward {
  Array y;
  float amax;
};
inline Forward forward(const Case& c, Inputs& in) {
  Forward out{Array(c.out_format, c.rows * c.cols), 0};
  activation_forward({.activation = c.spec(),
                      .rows = c.rows,
                      .cols = c.cols,
                      .x = in.x.data(),
                      .x_format = c.x_format,
                      .y = out.y.data(),
                      .y_format = c.out_format,
                      .scale = &c.scale,
                      .amax = &out.amax});
  EXPECT_TRUE(out.y.guards_intact());
  return out;
}

struct Backward {
  Array dx, column_sum;
  float amax;
};
inline Backward backward(const Case& c, Inputs& in) {
  Backward out{Array(c.out_format, c.rows * c.x_cols()), Array(Format::kFp32, c.x_cols()), 0};
  activation_backward({.activation = c.spec(),
                       .rows = c.rows,
                       .cols = c.cols,
                       .x = in.x.data(),
                       .x_format = c.x_format,
                       .dy = in.dy.data(),
                       .dy_format = c.dy_format,
                       .dx = out.dx.data(),
                       .dx_format = c.out_format,
                       .scale = &c.scale,
                       .amax = &out.amax,
                       .column_sum = c.column_sum ? out.column_sum.floats() : nullptr});
  EXPECT_TRUE(out.dx.guards_intact() && out.column_sum.guards_intact());
  return out;
}

}  // namespace plimsoll::kernels::testing
