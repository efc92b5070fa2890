// The exact power-of-two freedoms of a network: which of its tensors can be multiplied by which powers of two so that,
// in FP32, its outputs keep their bits. Source of the idea: a norm does not see the scale of what it reads, and of two
// linear maps in a row one can give what the other takes.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll::models {

// Grows by 2^(r [if on the residual stream] + sign * exponent of its pair).
struct GaugedTensor {
  std::string name;  // of a parameter, or of a value as watch reports it: "encoder.final_layer_norm/input"
  bool residual = false;
  std::optional<size_t> pair = {};  // index of Freedoms::pairs
  int sign = 1;
  bool one_plus = false;  // a norm's weight w that multiplies as 1 + w: 1 + w grows
};

struct Freedoms {
  std::vector<std::string>
      pairs;  // of each the module whose weight has the pair's exponent; its partner has the negative
  std::vector<GaugedTensor> weights, values;
  std::vector<std::string> without = {};  // what stays as it is, and why, one line each
};

struct Exponents {
  int residual = 0;             // the norms' epsilon grows by 4^residual
  std::vector<int> pairs = {};  // as Freedoms::pairs
};

using Amaxes = std::map<std::string, float>;  // of values, by GaugedTensor::name

int exponent_of(const GaugedTensor& tensor, const Exponents& exponents);

}  // namespace plimsoll::models
