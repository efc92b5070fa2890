// Inference that keeps no weights beside the model's own.
#pragma once

namespace plimsoll::ops {

// While one lives, linear layers called on its thread without gradients quantize and pack their weight in each call, in the
// memory of one layer, where they would keep what they made (weight_source.h): for passes over many tokens of a model that
// should be in memory once. The results have the same bits.
class NoKeptWeights {
 public:
  NoKeptWeights();
  ~NoKeptWeights();
  NoKeptWeights(const NoKeptWeights&) = delete;
  NoKeptWeights& operator=(const NoKeptWeights&) = delete;

  static bool is_in_force();

 private:
  const bool outer_;
};

}  // namespace plimsoll::ops
