// y = x weight^T, the products of a T5: under the recipe of the scope, or, for inference, from FP8 codes.
#pragma once

#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>

#include "plimsoll/nn/scaled_module.h"
#include "plimsoll/nn/t5/coded_weight.h"

namespace plimsoll::nn {

// A weight that someone else holds (a tied head) as this product reads it.
class T5Product {
 public:
  // What the recipe keeps between calls. Codes, once made, stay.
  void use(std::shared_ptr<ops::LinearState> state) { state_ = std::move(state); }

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& weight) const;

  // From here on reads codes of `weight`, whatever the calls give; no gradients.
  void quantize(const at::Tensor& weight) { codes_ = std::make_shared<const CodedWeight>(weight); }

 private:
  std::shared_ptr<ops::LinearState> state_;
  std::shared_ptr<const CodedWeight> codes_;
};

class T5LinearImpl : public ScaledModule<T5LinearImpl> {
 public:
  T5LinearImpl(int64_t in_features, int64_t out_features);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // x [..., in_features] -> [..., out_features].
  at::Tensor forward(const at::Tensor& x) { return product_(x, weight); }

  // From here on reads codes of `source` [out_features, in_features]; the parameter is left empty.
  void quantize(const at::Tensor& source);

  const std::string& path() const { return products_.front().state->name; }  // in the model, for reports

  int64_t in_features, out_features;
  at::Tensor weight;  // [out_features, in_features], uninitialised: T5Weight

 private:
  T5Product product_;
};
TORCH_MODULE(T5Linear);

}  // namespace plimsoll::nn
