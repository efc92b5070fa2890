// The weight of a layer as inference reads it: quantized and packed once, and read as long as nobody changes it.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <mutex>
#include <optional>

#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/recipe/operand.h"
#include "plimsoll/watch/slots.h"

namespace plimsoll::ops {

// What the kept operand was made from, the tensor itself aside.
struct WeightKey {
  recipe::OperandRecipe operand;
  float delayed_scale = 0;  // 0 where the recipe has none
  int64_t version = 0;      // the tensor's version counter: `tensor.data` changes behind its back
  const void* data = nullptr;
  runtime::Isa isa = runtime::Isa::kPortable;

  friend bool operator==(const WeightKey&, const WeightKey&) = default;
};

class InferenceWeight {
 public:
  struct Made {
    ScaledTensor operand;
    std::optional<watch::Observation> seen;  // by the watch, while it was made
  };
  struct Kept {
    Made made;
    PackedWeight packed;
  };

  // From the second call in a row on that sees the same tensor and key: nothing is kept of a tensor made for one call.
  // Safe to call from several threads.
  std::optional<Kept> find(const at::Tensor& weight, const WeightKey& key, const std::function<Made()>& make);

  void release();

 private:
  using Seen = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  std::mutex mutex_;
  std::optional<Seen> seen_;
  WeightKey key_;
  std::optional<Kept> kept_;
  at::Tensor source_;  // keeps the memory that kept_ was made from, so that no other tensor can stand at its address
};

}  // namespace plimsoll::ops
