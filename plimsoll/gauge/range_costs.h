// Costs of exponents as far as amaxes and weights tell them, without a forward pass.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plimsoll/gauge/fp16_range.h"
#include "plimsoll/models/freedoms.h"

namespace plimsoll::gauge {

using WeightRanges = std::map<std::string, ExponentCounts>;  // of parameters, by name

struct RangeCost {
  double beyond = 0;  // bits of headroom that are missing, squared, the sum of all tensors
  double lost = 0;    // bits of precision that weights lose to subnormal numbers, the sum of their means

  RangeCost& operator+=(const RangeCost& other) {
    beyond += other.beyond;
    lost += other.lost;
    return *this;
  }
  friend bool operator<(const RangeCost& a, const RangeCost& b) {
    return a.beyond != b.beyond ? a.beyond < b.beyond : a.lost < b.lost;
  }
};

class RangeCosts {
 public:
  // A value is to keep headroom_bits, since other inputs may raise it; a weight has to fit. A name that is missing from
  // the maps is an error; all amaxes must be finite.
  // gradients: amaxes of the values' gradients, by the values' names, of those that are to keep headroom, too; a gradient
  // shrinks as its value grows.
  RangeCosts(const models::Freedoms& freedoms, const WeightRanges& weights, const models::Amaxes& values,
             int headroom_bits, const models::Amaxes& gradients = {});

  // First the least headroom missing, then the fewest bits lost, then the smallest exponents; a pair that rounds weights of
  // 1 + w has one for headroom alone. Given the residual stream's exponent no pair touches another one, so each is searched
  // by itself.
  models::Exponents best() const;
  models::Exponents best_with(int residual) const;

  RangeCost of(const models::Exponents& exponents) const;
  // Mean bits that the weight with most loss loses.
  double worst_loss(const models::Exponents& exponents) const;

 private:
  // The cost of one tensor at each of its exponents.
  class TensorCost {
   public:
    // direction: 1, or -1 of a gradient.
    TensorCost(const models::GaugedTensor& tensor, int direction, float amax, const ExponentCounts* counts,
               int headroom_bits);
    RangeCost at(int residual, int pair) const;

   private:
    int residual_, pair_;  // powers of two of the tensor for one of the stream, and of its pair
    std::vector<RangeCost> costs_;
  };
  using Costs = std::vector<TensorCost>;
  struct Choice;

  void add(const models::GaugedTensor& tensor, int direction, float amax, const ExponentCounts* counts,
           int headroom_bits);
  static RangeCost sum(const Costs& costs, int residual, int pair);
  template <class Function>
  static Choice best_exponent(const Function& cost);
  Choice best_pair(size_t index, int residual) const;
  RangeCost cost_with(int residual) const;

  Costs residual_;            // tensors that the residual stream's exponent alone moves
  std::vector<Costs> pairs_;  // those of each pair
  std::vector<bool> rounds_;  // of each pair: FP32 may not hold its weights times a power of two
};

}  // namespace plimsoll::gauge
