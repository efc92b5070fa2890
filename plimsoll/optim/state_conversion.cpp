#include "plimsoll/optim/state_conversion.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "plimsoll/format/codec.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::optim {
namespace {

using at::Tensor;
using format::Bf16;
using format::Fp16;
using kernels::kStateGroup;

// body(group, begin, end) for each group of elements that share a scale.
template <class Body>
void for_each_group(int64_t count, const Body& body) {
  runtime::parallel_for(scale_count(count), 64, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group)
      body(group, group * kStateGroup, std::min(count, (group + 1) * kStateGroup));
  });
}

// The least FP16 number that is not below amax, or the largest that there is; NaN if amax is not finite.
uint16_t scale_above(float amax) {
  constexpr uint16_t kNan = 0x7e00, kLargest = 0x7bff;
  if (!std::isfinite(amax)) return kNan;
  const uint16_t nearest = Fp16::encode(amax);
  return std::min(static_cast<uint16_t>(Fp16::decode(nearest) < amax ? nearest + 1 : nearest), kLargest);
}

float value1(int8_t code) {
  const auto x = static_cast<float>(code);
  return x / (254 - std::fabs(x));
}

int8_t code1(float x) {
  const float y = std::fabs(x);
  return static_cast<int8_t>(std::nearbyint(std::copysign(std::min(254 * y / (1 + y), 127.0f), x)));
}

// A root that is not 0 is not stored as 0, as in an update.
uint8_t code2(float x) {
  const float nearest = std::nearbyint(std::min(255 * x, 255.0f));
  return static_cast<uint8_t>(x > 0 ? std::max(nearest, 1.0f) : 0.0f);
}

Tensor wide_8bit(const KeptMoment& kept) {
  const Tensor wide = at::empty(kept.values.sizes(), at::kFloat);
  float* const values = wide.data_ptr<float>();
  const auto* const scales = reinterpret_cast<const uint16_t*>(kept.scale.const_data_ptr<at::Half>());
  const bool is_first = kept.values.scalar_type() == at::kChar;
  const void* const codes = kept.values.const_data_ptr();
  for_each_group(wide.numel(), [&](int64_t group, int64_t begin, int64_t end) {
    const float scale = Fp16::decode(scales[group]);
    for (int64_t i = begin; i < end; ++i) {
      const float root = static_cast<float>(static_cast<const uint8_t*>(codes)[i]) * (scale * (1 / 255.0f));
      values[i] = is_first ? value1(static_cast<const int8_t*>(codes)[i]) * scale : root * root;
    }
  });
  return wide;
}

KeptMoment keep_8bit(const Tensor& wide, Moment moment) {
  const bool is_first = moment == Moment::kFirst;
  const KeptMoment kept{at::empty(wide.sizes(), dtype_of(StateKind::k8Bit, moment)),
                        at::empty({scale_count(wide.numel())}, at::kHalf)};
  const float* const values = wide.const_data_ptr<float>();
  auto* const scales = reinterpret_cast<uint16_t*>(kept.scale.data_ptr<at::Half>());
  void* const codes = kept.values.data_ptr();
  const auto given = [&](int64_t i) { return is_first ? values[i] : std::sqrt(values[i]); };
  for_each_group(wide.numel(), [&](int64_t group, int64_t begin, int64_t end) {
    float amax = 0;
    for (int64_t i = begin; i < end; ++i) {
      const float x = std::fabs(given(i));
      if (!(x <= amax)) amax = std::isnan(amax) ? amax : x;
    }
    scales[group] = scale_above(amax);
    const float scale = Fp16::decode(scales[group]);
    for (int64_t i = begin; i < end; ++i) {
      const float x = scale > 0 ? given(i) / scale : 0;
      if (is_first) {
        static_cast<int8_t*>(codes)[i] = code1(x);
      } else {
        static_cast<uint8_t*>(codes)[i] = code2(x);
      }
    }
  });
  return kept;
}

// Half an ulp of a BF16 number.
double half_ulp(uint16_t narrow) { return std::ldexp(1.0, std::max((narrow >> 7) & 0xff, 1) - 127 - 8); }

}  // namespace

at::ScalarType dtype_of(StateKind kind, Moment moment) {
  switch (kind) {
    case StateKind::kFp32:
      return at::kFloat;
    case StateKind::kBf16:
      return at::kBFloat16;
    case StateKind::k8Bit:
      return moment == Moment::kFirst ? at::kChar : at::kByte;
  }
  runtime::unexpected("optimizer state", static_cast<int>(kind));
}

int64_t scale_count(int64_t numel) { return (numel + kStateGroup - 1) / kStateGroup; }

Tensor wide_moment(const KeptMoment& kept) {
  return kept.scale.defined() ? wide_8bit(kept) : kept.values.to(at::kFloat);
}

KeptMoment keep_moment(const Tensor& wide, StateKind kind, Moment moment) {
  return kind == StateKind::k8Bit ? keep_8bit(wide, moment) : KeptMoment{wide.to(dtype_of(kind, moment)), {}};
}

Tensor join_weight(const Tensor& narrow, const Tensor& correction) {
  const Tensor wide = at::empty(narrow.sizes(), at::kFloat);
  float* const values = wide.data_ptr<float>();
  const auto* const words = reinterpret_cast<const uint16_t*>(narrow.const_data_ptr<at::BFloat16>());
  const int8_t* const codes = correction.const_data_ptr<int8_t>();
  for_each_group(narrow.numel(), [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double w = double{Bf16::decode(words[i])};
      const bool is_moved = codes[i] != 0 && std::isfinite(w);  // -0 keeps its sign
      values[i] = static_cast<float>(is_moved ? w + codes[i] / 127.0 * half_ulp(words[i]) : w);
    }
  });
  return wide;
}

Tensor correction_of(const Tensor& wide) {
  const Tensor correction = at::empty(wide.sizes(), at::kChar);
  const float* const values = wide.const_data_ptr<float>();
  int8_t* const codes = correction.data_ptr<int8_t>();
  for_each_group(wide.numel(), [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t narrow = Bf16::encode(values[i]);
      const double w = double{Bf16::decode(narrow)};
      const double code = 127 * (double{values[i]} - w) / half_ulp(narrow);
      codes[i] = std::isfinite(w) ? static_cast<int8_t>(std::nearbyint(std::clamp(code, -127.0, 127.0))) : int8_t{0};
    }
  });
  return correction;
}

}  // namespace plimsoll::optim
