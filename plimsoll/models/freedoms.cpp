#include "plimsoll/models/freedoms.h"

namespace plimsoll::models {

int exponent_of(const GaugedTensor& tensor, const Exponents& exponents) {
  return (tensor.residual ? exponents.residual : 0) + (tensor.pair ? tensor.sign * exponents.pairs[*tensor.pair] : 0);
}

const std::vector<int>* channel_exponents_of(const GaugedTensor& tensor, const Exponents& exponents) {
  if (!tensor.pair || !tensor.channels) return nullptr;
  const auto found = exponents.channels.find(*tensor.pair);
  return found == exponents.channels.end() ? nullptr : &found->second;
}

}  // namespace plimsoll::models
