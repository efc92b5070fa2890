// x times the weights of layers that read the same x: one product in inference, with the weights packed once.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "plimsoll/models/t5/linear.h"

namespace plimsoll::models {

class T5Product {
 public:
  T5Product() = default;
  explicit T5Product(std::vector<T5Linear> layers);

  at::Tensor joined(const at::Tensor& x) const;              // [..., in] -> [..., sum of out_features]
  std::vector<at::Tensor> parts(const at::Tensor& x) const;  // [..., out_features] of each

  const std::vector<T5Linear>& layers() const { return layers_; }

  // From here on, in all copies, multiplies by these codes of its layers' weights, whatever they hold; nullptr: as before.
  void hold(std::shared_ptr<const ops::PackedWeights> codes);

  // The weights as they multiply an x of `dtype` here and now; nullptr where each layer multiplies by itself. is_step: for
  // a token of a text that has begun, whose weights are compared as far as torch counts writes.
  std::shared_ptr<const ops::PackedWeights> packed_for(at::ScalarType dtype, bool is_step = false) const;

 private:
  class Packed;
  std::optional<at::Tensor> all_at_once(const at::Tensor& x) const;  // as `joined`; nullopt: layer by layer
  std::vector<at::Tensor> parts_of_layers(const at::Tensor& x) const;
  std::vector<at::Tensor> parts_of(const at::Tensor& all) const;
  void report(const at::Tensor& x, const ops::PackedWeights::Output& output) const;

  std::vector<T5Linear> layers_;
  std::shared_ptr<Packed> packed_;
};

}  // namespace plimsoll::models
