// Names of options in a config.json, and what they mean.
#pragma once

#include <ATen/core/TensorBody.h>

#include <array>
#include <optional>

#include "plimsoll/models/decoder/config.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::models {

// The activation alone, and as the gate of a gated feed-forward network.
struct FeedForwardActivation {
  kernels::Activation plain;
  std::optional<kernels::Activation> gate;

  std::optional<kernels::Activation> of(bool gated) const { return gated ? gate : plain; }
};

// gelu is the form by erf; the other two are one function.
inline constexpr std::array<recipe::Named<FeedForwardActivation>, 5> kConfigActivations = {
    {{"silu", {kernels::Activation::kSilu, kernels::Activation::kSwiglu}},
     {"gelu_pytorch_tanh", {kernels::Activation::kGelu, kernels::Activation::kGeglu}},
     {"gelu_new", {kernels::Activation::kGelu, kernels::Activation::kGeglu}},
     {"gelu", {kernels::Activation::kGeluErf, std::nullopt}},
     {"relu", {kernels::Activation::kRelu, kernels::Activation::kReglu}}}};

inline constexpr std::array<recipe::Named<nn::RotaryScaling>, 3> kRotaryScalings = {
    {{"default", nn::RotaryScaling::kNone},
     {"linear", nn::RotaryScaling::kLinear},
     {"llama3", nn::RotaryScaling::kLlama3}}};

inline constexpr std::array<recipe::Named<Reach>, 2> kReaches = {
    {{"full_attention", Reach::kFull}, {"sliding_attention", Reach::kSliding}}};

inline constexpr std::array<recipe::Named<at::ScalarType>, 3> kConfigDtypes = {
    {{"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}}};

}  // namespace plimsoll::models
