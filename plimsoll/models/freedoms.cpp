#include "plimsoll/models/freedoms.h"

namespace plimsoll::models {

int exponent_of(const GaugedTensor& tensor, const Exponents& exponents) {
  return (tensor.residual ? exponents.residual : 0) + (tensor.pair ? tensor.sign * exponents.pairs[*tensor.pair] : 0);
}

}  // namespace plimsoll::models
