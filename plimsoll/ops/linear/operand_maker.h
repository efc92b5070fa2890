// Makes the operands of one linear layer in one pass: picks their scales, quantizes, and sees to it that every amax
// reaches the recipe and the watch.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "plimsoll/ops/linear/linear_scaling.h"
#include "plimsoll/ops/tensor/gemm.h"
#include "plimsoll/ops/tensor/producer.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/quantize_fp4.h"
#include "plimsoll/ops/watch/operand_seen.h"

namespace plimsoll::ops {

// Products that an operand is wanted for.
struct GemmSet {
  bool output = false;
  bool grad_input = false;
  bool grad_weight = false;
};

// Whether these are codes such as the recipe makes of a stored tensor.
bool has_form(const ScaledTensor& codes, const recipe::OperandRecipe& stored);

class OperandMaker {
 public:
  // record: amaxes reach the slots at the end of the pass.
  OperandMaker(const LinearScaling& scaling, Pass pass, bool record)
      : scaling_(scaling), recipe_(*scaling.recipe), pass_(pass), record_(record) {}

  // From a tensor that is there. column_sum as in quantize().
  Operands make(const at::Tensor& x, recipe::Role role, GemmSet wanted, at::Tensor* column_sum = nullptr);

  // From codes: as they are for products that want such codes, else by way of their values. Nothing is recorded.
  Operands make_from(const ScaledTensor& codes, recipe::Role role, GemmSet wanted) const;

  // The weight from given codes; where its amax is given, too, observed as what make() makes.
  Operands take(const GivenCodes& weight, GemmSet wanted);

  // From a kernel: codes at once where the scale is known before the tensor is, else through FP32.
  Operands produce(const Producer& producer, recipe::Role role, GemmSet wanted);

  // The same bits as in the pass that reported this scale, and nothing recorded.
  ScaledTensor produce_again(const Producer& producer, recipe::Role role, recipe::GemmKind gemm,
                             const ScaleRef& scale) const;
  ScaledTensor make_again(const at::Tensor& x, recipe::Role role, recipe::GemmKind gemm, const ScaleRef& scale) const;

  // The scale per tensor that the last make() or produce() used or would have used, if it was known before the codes
  // were made: delayed scaling's, or current scaling's where ranks agree on one.
  const ScaleRef& known_scale() const { return known_scale_; }

  // The layer's, for the watch; empty: it reports nothing.
  std::string_view path() const;

  // The watch's account of the operand that was made last, whether or not somebody watches; none of one without
  // codes.
  const std::optional<OperandSeen>& last_seen() const { return last_seen_; }
  // Reports an operand that was made earlier.
  void report(recipe::Role role, const OperandSeen& seen) const;

 private:
  bool quantizes(recipe::Role role) const;  // under delayed scaling, for any product
  OperandSlot& slot(recipe::Role role) const;
  uint64_t seed() const;  // of rotations and stochastic rounding
  // Options of codes with one current scale, where other ranks make codes of the other tokens with the same scale.
  std::optional<QuantizeOptions> shared_scale(recipe::Role role) const;
  // The largest amax of all tokens, where this rank has only some of them.
  AmaxSlot amax_of_all_tokens(recipe::Role role, const AmaxSlot& amax) const;
  void choose_scale(recipe::Role role, const std::function<AmaxSlot()>& own_amax);
  // amax: of x, where it is known.
  Operands make_each(const at::Tensor& x, recipe::Role role, GemmSet wanted, at::Tensor* column_sum,
                     const AmaxSlot& amax = {});
  // Amax of a gradient without codes, for a session that sees every value.
  void report_plain_gradient(const at::Tensor& x, recipe::Role role, GemmSet wanted) const;
  // The account of an operand for the watch, a controller of formats and, under delayed scaling, the slot.
  void observe(recipe::Role role, const recipe::OperandRecipe& stored, const OperandSeen& seen,
               const at::Tensor& statistic = {});
  void record_amax(recipe::Role role, const AmaxSlot& amax) const;
  QuantizedFp4 make_four_bits(const at::Tensor& x, recipe::Role role, const Fp4Operands& operands,
                              const AmaxSlot& amax);

  // Whether a controller wants to know what the operands of this pass cost.
  bool measures() const;
  void tell(OperandCost cost) const;
  void tell_four_bits(recipe::Role role, const Fp4Operands& operands, const QuantizedFp4& codes) const;
  // The costs of an operand in the codes of the rungs below those of the wanted products, but where `made` has them.
  void try_codes(const at::Tensor& x, recipe::Role role, GemmSet wanted, std::vector<recipe::OperandRecipe> made) const;

  const LinearScaling& scaling_;
  const recipe::Recipe& recipe_;
  Pass pass_;
  bool record_;
  ScaleRef known_scale_;
  std::optional<OperandSeen> last_seen_;
};

}  // namespace plimsoll::ops
