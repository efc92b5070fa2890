// Activations and their gradients, gated ones too, with the FP8 quantization in the same pass.
// Gated forms read x [rows, 2 cols] and gate with the first half: y = act(x[:, :cols]) * x[:, cols:]. GELU is the tanh
// form, GELU by erf x times the normal share below x; squared ReLU is max(x, 0)^2 (So et al., Primer, 2021); quick GELU
// is x sigmoid(1.702 x) (Hendrycks and Gimpel, 2016); clamped SwiGLU is gpt-oss's, g sigmoid(alpha g) (u + offset) of
// g = min(x, limit) and u = clamp(value, -limit, limit), whose gradient is 0 beyond the limits. Same bits on every ISA
// and thread count. Any rows, cols >= 0; matrices are contiguous.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "plimsoll/format/format.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::kernels {

enum class Activation : uint8_t {
  kGelu,
  kRelu,
  kSilu,
  kGeglu,
  kReglu,
  kSwiglu,
  kSrelu,
  kSreglu,
  kQgelu,
  kQgeglu,
  kGlu,
  kGeluErf,
  kClampedSwiglu
};

enum class Curve : uint8_t {  // function of one element
  kGelu,
  kRelu,
  kSilu,
  kSquaredRelu,
  kQuickGelu,
  kSigmoid,
  kGeluErf,
  kClampedSilu
};

struct ActivationParameter {
  std::string_view name = {};  // empty: none
  float value = 0;             // by default
  bool positive = false;       // no other value makes sense
};
inline constexpr size_t kActivationParameters = 3;  // of the kind that has most
using ActivationParameters = std::array<float, kActivationParameters>;

struct ActivationInfo {
  Activation kind;
  std::string_view name;
  Curve curve;
  bool gated;
  std::array<ActivationParameter, kActivationParameters> parameters = {};
};
inline constexpr std::array kActivations = {
    ActivationInfo{Activation::kGelu, "gelu", Curve::kGelu, false},
    ActivationInfo{Activation::kRelu, "relu", Curve::kRelu, false},
    ActivationInfo{Activation::kSilu, "silu", Curve::kSilu, false},
    ActivationInfo{Activation::kGeglu, "geglu", Curve::kGelu, true},
    ActivationInfo{Activation::kReglu, "reglu", Curve::kRelu, true},
    ActivationInfo{Activation::kSwiglu, "swiglu", Curve::kSilu, true},
    ActivationInfo{Activation::kSrelu, "srelu", Curve::kSquaredRelu, false},
    ActivationInfo{Activation::kSreglu, "sreglu", Curve::kSquaredRelu, true},
    ActivationInfo{Activation::kQgelu, "qgelu", Curve::kQuickGelu, false},
    ActivationInfo{Activation::kQgeglu, "qgeglu", Curve::kQuickGelu, true},
    ActivationInfo{Activation::kGlu, "glu", Curve::kSigmoid, true},
    ActivationInfo{Activation::kGeluErf, "gelu_erf", Curve::kGeluErf, false},
    ActivationInfo{Activation::kClampedSwiglu,
                   "clamped_swiglu",
                   Curve::kClampedSilu,
                   true,
                   {{{"limit", 7.0f, true}, {"alpha", 1.702f}, {"glu_linear_offset", 1.0f}}}},
};

constexpr const ActivationInfo& info(Activation kind) {
  for (const ActivationInfo& each : kActivations) {
    if (each.kind == kind) return each;
  }
  runtime::unexpected("activation", static_cast<int>(kind));
}

constexpr bool is_gated(Activation kind) { return info(kind).gated; }

// An activation with the values of its parameters, in the order of its row.
struct ActivationSpec {
  constexpr ActivationSpec(Activation which = Activation::kGelu) : kind(which) {  // at their defaults
    for (size_t i = 0; i < kActivationParameters; ++i) parameters[i] = info(kind).parameters[i].value;
  }

  Activation kind;
  ActivationParameters parameters = {};
};

struct ActivationForward {
  ActivationSpec activation = {};
  int64_t rows = 0, cols = 0;                       // of y
  const void* x = nullptr;                          // [rows, cols], gated: [rows, 2 cols]
  format::Format x_format = format::Format::kFp32;  // fp32, bf16, fp16
  void* y = nullptr;                                // [rows, cols]; may be x of the same format, not gated
  format::Format y_format = format::Format::kFp32;  // fp32, bf16, fp16, e4m3, e5m2
  const float* scale = nullptr;  // FP8: codes = encode(y * (1 / *scale)), saturating; nullptr or 0: 1
  float* amax = nullptr;         // of y before it is scaled, overwritten; optional
};

void activation_forward(const ActivationForward& args);

struct ActivationBackward {
  ActivationSpec activation = {};
  int64_t rows = 0, cols = 0;  // of dy
  const void* x = nullptr;     // as in forward
  format::Format x_format = format::Format::kFp32;
  const void* dy = nullptr;  // [rows, cols]
  format::Format dy_format = format::Format::kFp32;
  void* dx = nullptr;                                // the shape of x
  format::Format dx_format = format::Format::kFp32;  // fp32, bf16, fp16, e4m3, e5m2
  const float* scale = nullptr;                      // as in forward
  float* amax = nullptr;                             // of dx before it is scaled, overwritten; optional
  float* column_sum = nullptr;  // [cols of x], optional: dbias, the sum of dx over rows before encoding; overwritten
};

void activation_backward(const ActivationBackward& args);

}  // namespace plimsoll::kernels
