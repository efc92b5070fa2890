// A weight of T5's products y = x weight^T, none of which has a bias. T5Product multiplies with it.
#pragma once

#include <torch/nn/pimpl.h>

#include <functional>

#include "plimsoll/nn/scaled_module.h"

namespace plimsoll::nn {

// What FP8 codes are made of when they are first needed.
struct T5CodeSource {
  at::Tensor weight = {};           // [out_features, in_features], fp32, bf16 or fp16; undefined: none
  std::function<void()> done = {};  // called when it has been read
};

class T5LinearImpl : public ScaledModule<T5LinearImpl> {
 public:
  T5LinearImpl(int64_t in_features, int64_t out_features);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // x [..., in_features] -> [..., out_features], under the recipe of the scope and with gradients.
  at::Tensor forward(const at::Tensor& x) const;

  // From here on for inference alone, by codes of `source`; the parameter is left empty.
  void quantize(T5CodeSource source);
  const T5CodeSource& code_source() const { return code_source_; }

  // From here on, until it is quantized, reads the parameter of another module; its own is empty.
  void tie(const at::Tensor& other);

  const std::string& path() const { return products_.front().state->name; }  // in the model, for reports

  int64_t in_features, out_features;
  at::Tensor weight;  // [out_features, in_features], uninitialised: T5Weight

 private:
  T5CodeSource code_source_;
};
TORCH_MODULE(T5Linear);

}  // namespace plimsoll::nn
