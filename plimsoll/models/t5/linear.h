// A weight of T5's products y = x weight^T, none of which has a bias. T5Product multiplies with it.
#pragma once

#include <torch/nn/pimpl.h>

#include "plimsoll/models/t5/weight.h"
#include "plimsoll/nn/scaled_module.h"
#include "plimsoll/ops/linear/packed_weights.h"

namespace plimsoll::models {

class T5LinearImpl : public nn::ScaledModule<T5LinearImpl> {
 public:
  T5LinearImpl(int64_t in_features, int64_t out_features);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  // x [..., in_features] -> [..., out_features], under the recipe of the scope and with gradients; once it is quantized,
  // by its codes, without.
  at::Tensor forward(const at::Tensor& x) const;

  // From here on for inference alone, by codes of `source`, made when they are first needed; the parameter is left
  // empty.
  void quantize(ops::CodeSource source, ops::CodeKind kind = ops::CodeKind::kE4m3Rows);
  bool is_quantized() const { return code_source_.weight.defined(); }
  const ops::CodeSource& code_source() const { return code_source_; }
  ops::CodeKind code_kind() const { return code_kind_; }

  // From here on, until it is quantized, reads the parameter of another module, whatever tensor that is by then; its
  // own is empty. A copy must be tied to the copy of that module: T5ForConditionalGenerationImpl::reset().
  void tie(T5Weight other);

  bool takes_codes() const { return products_.front().takes_codes(); }  // the plan has nothing against it

  const std::string& path() const { return products_.front().state->name; }  // in the model, for reports

  // [out_features, in_features], uninitialised as T5Weight's; empty once it is quantized.
  const at::Tensor& weight() const { return tied_to_.is_empty() ? weight_ : tied_to_->weight; }

  int64_t in_features, out_features;

 private:
  at::Tensor weight_;  // the parameter
  T5Weight tied_to_{nullptr};
  ops::CodeSource code_source_;
  ops::CodeKind code_kind_ = ops::CodeKind::kE4m3Rows;
};
TORCH_MODULE(T5Linear);

}  // namespace plimsoll::models
