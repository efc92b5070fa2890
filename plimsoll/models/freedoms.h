// The exact power-of-two freedoms of a network: which of its tensors can be multiplied by which powers of two so that,
// in FP32, its outputs keep their bits. Source of the idea: a norm does not see the scale of what it reads, and of two
// linear maps in a row one can give what the other takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll::models {

// The channels of a pair that a parameter has: one of them may have an exponent beside the others'.
struct GaugedChannels {
  int64_t dim = 0;                    // of the parameter
  std::vector<int64_t> channel = {};  // of each index of that dimension
};

// Grows by 2^(r [if on the residual stream] + sign * exponent of its pair), and each channel by 2^(sign * its own).
struct GaugedTensor {
  std::string name;  // of a parameter, or of a value as watch reports it: "encoder.final_layer_norm/input"
  bool residual = false;
  std::optional<size_t> pair = {};  // index of Freedoms::pairs
  int sign = 1;
  bool one_plus = false;                                // a norm's weight w that multiplies as 1 + w: 1 + w grows
  std::shared_ptr<const GaugedChannels> channels = {};  // of a parameter; nullptr: its channels have no exponents
};

struct Freedoms {
  std::vector<std::string>
      pairs;  // of each the module whose weight has the pair's exponent; its partner has the negative
  std::vector<GaugedTensor> weights, values;
  std::vector<std::string> without = {};  // what stays as it is, and why, one line each
};

struct Exponents {
  int residual = 0;                                  // the norms' epsilon grows by 4^residual
  std::vector<int> pairs = {};                       // as Freedoms::pairs
  std::map<size_t, std::vector<int>> channels = {};  // of each channel of a pair, by the pair's index; none: 0
};

using Amaxes = std::map<std::string, float>;  // of values, by GaugedTensor::name

// Without those of single channels.
int exponent_of(const GaugedTensor& tensor, const Exponents& exponents);
// Exponents of the channels of the tensor's pair, before its sign; nullptr: none, or the tensor has no channels.
const std::vector<int>* channel_exponents_of(const GaugedTensor& tensor, const Exponents& exponents);

}  // namespace plimsoll::models
