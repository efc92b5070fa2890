// The tensors of one call, and the scale that follows from them.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/core/stack.h>

#include <memory>
#include <vector>

#include "plimsoll/autoscale/plan.h"
#include "plimsoll/autoscale/scaled_tensor_impl.h"

namespace plimsoll::autoscale {

struct Operand {
  at::Tensor tensor;     // as the caller gave it
  at::Tensor data = {};  // what the kernel gets
  Scale scale = {};      // of data; where these are the value, of the tensor
  Use use = Use::kAnyScale;
  bool written = false;
  bool written_unsaid = false;  // by the operator, whose schema does not say so
  size_t argument = 0;          // of the call

  // Whether its scale has a part in the result's.
  bool is_data() const { return tensor.defined() && use >= Use::kLinear; }
  bool is_value() const { return use == Use::kValue || use == Use::kGain || use == Use::kOffset; }
};

class Operands {
 public:
  // The arguments of `plan` that are on top of the stack. At least one is scaled.
  Operands(const Plan& plan, const torch::jit::Stack& stack);

  const std::shared_ptr<Session>& session() const { return session_; }
  at::ScalarType logical() const { return logical_; }
  bool wide() const { return wide_; }
  // Whether the data of all that goes into the result's elements are FP32, though the session's format is another.
  bool spread() const { return has_spread_ && !has_narrow_; }
  // Whether some are FP32 and some are not: what follows from scales says little of such a result's size.
  bool meets_spread() const { return has_spread_ && has_narrow_; }
  // dtype of a result's data. spreads: its elements lie further apart than the operands'.
  at::ScalarType result_dtype(int64_t dimensions, bool spreads = false) const;
  // Whether all tensors are strided. A sparse one has no data that a shift applies to.
  bool strided() const { return strided_; }
  // Whether one of them is a gradient.
  bool gradient() const { return gradient_; }
  std::vector<Operand>& all() { return operands_; }
  // Options of a result that has this scale.
  ScaledOptions options(const Scale& scale) const { return {scale, session_, logical_, wide_, gradient_}; }

  // Data are those of the tensors, and plain ones are given a scale.
  void enter();
  // Values in FP32.
  void enter_values();

  // Whether all data with dimensions are in the session's format, and none is a value.
  bool one_format() const;
  void widen();

  // The arguments as the kernel gets them.
  void write(const Plan& plan, torch::jit::Stack& stack) const;

 private:
  void add(const at::Tensor& tensor, const ArgumentPlan& plan, size_t argument);
  void note_spread(const at::Tensor& tensor, Use use);
  // A number near 1 enters as it is, which costs no kernel. False: another one.
  bool enter_number(Operand& operand) const;

  std::vector<Operand> operands_;
  std::shared_ptr<Session> session_;
  at::ScalarType logical_ = at::kFloat;
  bool wide_ = false, gradient_ = false, strided_ = true, has_spread_ = false, has_narrow_ = false;
};

}  // namespace plimsoll::autoscale
