// Activations and their gradients, gated ones too, with the FP8 quantization in the same pass.
// Gated forms read x [rows, 2 cols] and gate with the first half: y = act(x[:, :cols]) * x[:, cols:]. GELU is the tanh
// form. Same bits on every ISA and thread count. Any rows, cols >= 0; matrices are contiguous.
#pragma once

#include <cstdint>

#include "plimsoll/format/format.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::kernels {

enum class Activation : uint8_t { kGelu, kRelu, kSilu, kGeglu, kReglu, kSwiglu };

constexpr bool is_gated(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
    case Activation::kRelu:
    case Activation::kSilu:
      return false;
    case Activation::kGeglu:
    case Activation::kReglu:
    case Activation::kSwiglu:
      return true;
  }
  runtime::unexpected("activation", static_cast<int>(activation));
}

struct ActivationForward {
  Activation kind = Activation::kGelu;
  int64_t rows = 0, cols = 0;                       // of y
  const void* x = nullptr;                          // [rows, cols], gated: [rows, 2 cols]
  format::Format x_format = format::Format::kFp32;  // fp32, bf16, fp16
  void* y = nullptr;                                // [rows, cols]
  format::Format y_format = format::Format::kFp32;  // fp32, bf16, fp16, e4m3, e5m2
  float inv_scale = 1.0f;                           // FP8: codes = encode(y * inv_scale), saturating
};

// Returns amax(y) before inv_scale.
float activation_forward(const ActivationForward& args);

struct ActivationBackward {
  Activation kind = Activation::kGelu;
  int64_t rows = 0, cols = 0;  // of dy
  const void* x = nullptr;     // as in forward
  format::Format x_format = format::Format::kFp32;
  const void* dy = nullptr;  // [rows, cols]
  format::Format dy_format = format::Format::kFp32;
  void* dx = nullptr;                                // the shape of x
  format::Format dx_format = format::Format::kFp32;  // fp32, bf16, fp16, e4m3, e5m2
  float inv_scale = 1.0f;
  float* column_sum = nullptr;  // [cols of x], optional: dbias, the sum of dx over rows before encoding; overwritten
};

// Returns amax(dx) before inv_scale.
float activation_backward(const ActivationBackward& args);

}  // namespace plimsoll::kernels
