#include "plimsoll/ops/linear/operand_maker.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "plimsoll/ops/scaling/rank_amaxes.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/runtime/unexpected.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::OperandRecipe;
using recipe::Role;
using recipe::ScaleSource;

bool wants(GemmSet set, GemmKind gemm) {
  switch (gemm) {
    case GemmKind::kOutput:
      return set.output;
    case GemmKind::kGradInput:
      return set.grad_input;
    case GemmKind::kGradWeight:
      return set.grad_weight;
  }
  runtime::unexpected("gemm: kind", static_cast<int>(gemm));
}

// Operand on which all wanted products agree; nullopt if they differ or none is wanted.
std::optional<OperandRecipe> common_operand(const recipe::Recipe& recipe, Role role, GemmSet wanted) {
  std::optional<OperandRecipe> common;
  for (GemmKind gemm : recipe::kGemmKinds) {
    if (!wants(wanted, gemm)) continue;
    const OperandRecipe operand = recipe.stored_operand(role, gemm);
    if (common && !(*common == operand)) return std::nullopt;
    common = operand;
  }
  return common;
}

// E2M1 operands among the wanted ones.
Fp4Operands fp4_operands(const recipe::Recipe& recipe, Role role, GemmSet wanted) {
  Fp4Operands result{.role = role};
  for (GemmKind gemm : recipe::kGemmKinds) {
    if (!wants(wanted, gemm)) continue;
    const OperandRecipe operand = recipe.stored_operand(role, gemm);
    if (operand.format == format::Format::kE2m1) result.add(operand);
  }
  return result;
}

const ScaledTensor& of_direction(const QuantizedFp4& codes, const OperandRecipe& operand) {
  return operand.turned ? codes.turned : codes.rows;
}

Operands shared(const ScaledTensor& tensor, GemmSet wanted) {
  Operands operands;
  for (GemmKind gemm : recipe::kGemmKinds) {
    if (wants(wanted, gemm)) operands.of(gemm) = tensor;
  }
  return operands;
}

// make(recipe) once for wanted products that follow each other with equal recipes: they share what it made.
template <class Make>
Operands one_of_each_recipe(const recipe::Recipe& recipe, Role role, GemmSet wanted, Make make) {
  Operands operands;
  std::optional<OperandRecipe> made;
  ScaledTensor last;
  for (GemmKind gemm : recipe::kGemmKinds) {
    if (!wants(wanted, gemm)) continue;
    const OperandRecipe operand = recipe.stored_operand(role, gemm);
    if (!made || !(*made == operand)) last = make(operand);
    made = operand;
    operands.of(gemm) = last;
  }
  return operands;
}

ScaledTensor in_format(const at::Tensor& x, format::Format format) {
  return plain_values(x.to(dtype_of(format)).contiguous(), format);
}

ScaledTensor converted(const ScaledTensor& codes, const OperandRecipe& to) {
  if (to.source == ScaleSource::kNone) return plain_values(dequantize(codes, dtype_of(to.format)), to.format);
  if (has_form(codes, to)) return codes;
  return quantize(dequantize(codes, at::kFloat), quantize_options(to, {})).tensor;
}

}  // namespace

bool has_form(const ScaledTensor& codes, const OperandRecipe& stored) {
  return stored.format == codes.format && stored.granularity == codes.granularity &&
         stored.scale_format == codes.scale_format && stored.turned == codes.turned;
}

bool OperandMaker::quantizes(Role role) const {
  if (recipe_.delayed() == nullptr) return false;
  for (GemmKind gemm : recipe::kGemmKinds) {
    if (recipe::takes_part(role, gemm) && recipe_.operand(role, gemm).source == ScaleSource::kDelayed) return true;
  }
  return false;
}

std::optional<QuantizeOptions> OperandMaker::shared_scale(Role role) const {
  if (!scaling_.parallel.gathers(role)) return std::nullopt;
  for (GemmKind gemm : recipe::kGemmKinds) {
    if (!recipe::takes_part(role, gemm)) continue;
    const OperandRecipe operand = recipe_.operand(role, gemm);
    if (operand.source == ScaleSource::kCurrent && operand.granularity == recipe::kPerTensor) {
      return quantize_options(operand, {});
    }
  }
  return std::nullopt;
}

// Without a seed nothing of the pass is random: outside training activations and weights are rounded to nearest.
uint64_t OperandMaker::seed() const { return scaling_.seed.value_or(0); }

AmaxSlot OperandMaker::amax_of_all_tokens(Role role, const AmaxSlot& amax_slot) const {
  return scaling_.parallel.gathers(role) ? largest_amax(*scaling_.parallel.group, amax_slot) : amax_slot;
}

OperandSlot& OperandMaker::slot(Role role) const {
  TORCH_CHECK(scaling_.state != nullptr, "linear: expected a state (slots) for delayed scaling, got none");
  return scaling_.state->slot(role);
}

void OperandMaker::choose_scale(Role role, const std::function<AmaxSlot()>& own_amax) {
  known_scale_ = {};
  if (const std::optional<QuantizeOptions> options = shared_scale(role)) {
    known_scale_ = tensor_scale(*options, amax_of_all_tokens(role, own_amax()));
  }
  if (!quantizes(role)) return;
  const ScaleRef delayed =
      slot(role).scale_for(*recipe_.delayed(), [&] { return amax_of_all_tokens(role, own_amax()); });
  known_scale_ = delayed.on(scaling_.device);
}

Operands OperandMaker::make(const at::Tensor& x, Role role, GemmSet wanted, at::Tensor* column_sum_out) {
  choose_scale(role, [&] { return find_amax(x); });
  return make_each(x, role, wanted, column_sum_out);
}

void OperandMaker::report_plain_gradient(const at::Tensor& x, Role role, GemmSet wanted) const {
  const watch::Session* const session = watch::current();
  if (role != Role::kGradOutput || session == nullptr || !session->sees_every_value()) return;
  const std::optional<OperandRecipe> operand = common_operand(recipe_, role, wanted);
  if (!operand || operand->source != ScaleSource::kNone) return;
  report(role, {.format = operand->format, .amax = find_amax(x)});
}

Operands OperandMaker::make_each(const at::Tensor& x, Role role, GemmSet wanted, at::Tensor* column_sum_out,
                                 const AmaxSlot& amax) {
  report_plain_gradient(x, role, wanted);
  const Fp4Operands four_bits = fp4_operands(recipe_, role, wanted);
  std::vector<OperandRecipe> made;
  for (const std::optional<OperandRecipe>& operand : {four_bits.rows, four_bits.turned}) {
    if (operand) made.push_back(*operand);
  }
  const QuantizedFp4 codes = four_bits.wanted() ? make_four_bits(x, role, four_bits, amax) : QuantizedFp4();
  Operands operands = one_of_each_recipe(recipe_, role, wanted, [&](const OperandRecipe& operand) {
    if (operand.source == ScaleSource::kNone) return in_format(x, operand.format);
    if (operand.format == format::Format::kE2m1) return of_direction(codes, operand);
    made.push_back(operand);
    QuantizeOptions options = quantize_options(operand, known_scale_);
    options.measures = measures();
    Quantized quantized = quantize(x, options, column_sum_out);
    column_sum_out = nullptr;
    observe(role, operand,
            {.format = operand.format,
             .amax = quantized.amax,
             .scale = options.scale,
             .by_blocks = !options.scale.defined()},
            quantized.statistic);
    return std::move(quantized.tensor);
  });
  if (measures()) try_codes(x, role, wanted, std::move(made));
  if (column_sum_out != nullptr) *column_sum_out = column_sum(x);
  return operands;
}

Operands OperandMaker::make_from(const ScaledTensor& codes, Role role, GemmSet wanted) const {
  return one_of_each_recipe(recipe_, role, wanted,
                            [&](const OperandRecipe& operand) { return converted(codes, operand); });
}

Operands OperandMaker::take(const GivenCodes& weight, GemmSet wanted) {
  if (weight.amax.defined()) {
    const bool one_scale = weight.codes.granularity == recipe::kPerTensor;
    observe(
        Role::kWeight, recipe_.stored_operand(Role::kWeight, GemmKind::kOutput),
        {.format = weight.codes.format,
         .amax = weight.amax,
         .scale = one_scale ? ScaleRef(weight.codes.scale).copy() : ScaleRef(),  // its owner may quantize anew into it
         .by_blocks = !one_scale});
  }
  const ScaledTensor& turned = weight.grad_input;
  const bool turns = wanted.grad_input && turned.data.defined() &&
                     has_form(turned, recipe_.stored_operand(Role::kWeight, GemmKind::kGradInput));
  if (turns) wanted.grad_input = false;
  Operands operands = make_from(weight.codes, Role::kWeight, wanted);
  if (turns) operands.grad_input = turned;
  return operands;
}

Operands OperandMaker::produce(const Producer& producer, Role role, GemmSet wanted) {
  const std::optional<OperandRecipe> operand = common_operand(recipe_, role, wanted);
  if (operand && operand->source == ScaleSource::kNone) {
    const Produced values = producer(operand->format, {});
    choose_scale(role, [&] { return values.amax; });
    observe(role, *operand, {.format = operand->format, .amax = values.amax});
    if (measures()) try_codes(values.values, role, wanted, {});
    return shared(plain_values(values.values, operand->format), wanted);
  }
  // Measurements need the values: the same codes, by way of memory.
  if (operand && operand->source == ScaleSource::kDelayed && !measures() && slot(role).has_scale()) {
    choose_scale(role, [] { return AmaxSlot(); });
    Produced codes = producer(operand->format, known_scale_);
    observe(role, *operand, {.format = operand->format, .amax = codes.amax, .scale = known_scale_});
    return shared(scaled_codes(std::move(codes.values), operand->format, known_scale_), wanted);
  }
  const Produced wide = producer(format::Format::kFp32, {});
  choose_scale(role, [&] { return wide.amax; });
  return make_each(wide.values, role, wanted, nullptr, wide.amax);
}

ScaledTensor OperandMaker::produce_again(const Producer& producer, Role role, GemmKind gemm,
                                         const ScaleRef& scale) const {
  const OperandRecipe operand = recipe_.stored_operand(role, gemm);
  switch (operand.source) {
    case ScaleSource::kNone:
      return plain_values(producer(operand.format, {}).values, operand.format);
    case ScaleSource::kDelayed:
      return scaled_codes(producer(operand.format, scale).values, operand.format, scale);
    case ScaleSource::kCurrent:
      break;
  }
  return make_again(producer(format::Format::kFp32, {}).values, role, gemm, scale);
}

ScaledTensor OperandMaker::make_again(const at::Tensor& x, Role role, GemmKind gemm, const ScaleRef& scale) const {
  const OperandRecipe operand = recipe_.stored_operand(role, gemm);
  if (operand.source == ScaleSource::kNone) return in_format(x, operand.format);
  if (operand.format == format::Format::kE2m1) {
    Fp4Operands four_bits{.role = role};
    four_bits.add(operand);
    return of_direction(quantize_fp4(x, four_bits, seed()), operand);
  }
  return quantize(x, quantize_options(operand, scale)).tensor;
}

bool OperandMaker::measures() const { return record_ && scaling_.told() != nullptr && scaling_.told()->measures(); }

void OperandMaker::tell(OperandCost cost) const {
  if (!record_ || scaling_.told() == nullptr) return;
  scaling_.told()->see(scaling_.state->grad_output, std::move(cost));
}

void OperandMaker::tell_four_bits(Role role, const Fp4Operands& operands, const QuantizedFp4& codes) const {
  if (operands.rows) {
    tell({.role = role, .operand = *operands.rows, .amax = codes.amax, .statistic = codes.rows_statistic});
  }
  if (operands.turned) {
    tell({.role = role, .operand = *operands.turned, .amax = codes.amax, .statistic = codes.turned_statistic});
  }
}

void OperandMaker::try_codes(const at::Tensor& x, Role role, GemmSet wanted, std::vector<OperandRecipe> made) const {
  const recipe::Automatic& ladder = scaling_.precision->recipe();
  Fp4Operands four_bits{.role = role};
  for (const GemmKind gemm : recipe::kGemmKinds) {
    if (!wants(wanted, gemm)) continue;
    const int64_t rung = ladder.rung_of(recipe_.stored_operand(role, gemm), role, gemm);
    if (rung == 0) continue;
    const OperandRecipe below = ladder.stored_operand(rung - 1, role, gemm);
    if (std::ranges::find(made, below) != made.end()) continue;
    made.push_back(below);
    if (below.format == format::Format::kE2m1) {
      four_bits.add(below);
      continue;
    }
    QuantizeOptions options = quantize_options(below, {});
    if (options.granularity == recipe::kPerTensor) options.scale = tensor_scale(options, find_amax(x));
    options.measures = true;
    const Quantized tried = quantize(x, options);
    tell({.role = role, .operand = below, .amax = tried.amax, .scale = options.scale, .statistic = tried.statistic});
  }
  if (four_bits.wanted()) tell_four_bits(role, four_bits, quantize_fp4(x, four_bits, seed(), /*measures=*/true));
}

QuantizedFp4 OperandMaker::make_four_bits(const at::Tensor& x, Role role, const Fp4Operands& operands,
                                          const AmaxSlot& amax) {
  QuantizedFp4 codes = quantize_fp4(x, operands, seed(), measures(), amax);
  last_seen_ = {.format = format::Format::kE2m1, .amax = codes.amax, .by_blocks = true};
  report(role, *last_seen_);
  tell_four_bits(role, operands, codes);
  // Delayed codes of the same operand, for another product, are not rotated.
  const OperandRecipe& seen = operands.rows ? *operands.rows : *operands.turned;
  if (seen.rotation == 0) record_amax(role, codes.amax);
  return codes;
}

void OperandMaker::observe(Role role, const OperandRecipe& stored, const OperandSeen& seen,
                           const at::Tensor& statistic) {
  last_seen_ = seen;
  report(role, seen);
  tell({.role = role, .operand = stored, .amax = seen.amax, .scale = seen.scale, .statistic = statistic});
  record_amax(role, seen.amax);
}

void OperandMaker::record_amax(Role role, const AmaxSlot& amax) const {
  if (!record_ || !quantizes(role) || scaling_.step == nullptr) return;
  const SharedSlot shared_slot(scaling_.state, &slot(role));
  const AmaxSlot amax_slot = scaling_.step->reduces(recipe_) ? amax : amax_of_all_tokens(role, amax);
  if (pass_ == Pass::kForward) {
    scaling_.step->record_forward(shared_slot, scaling_.recipe, amax_slot);
  } else {
    scaling_.step->record_backward(shared_slot, scaling_.recipe, amax_slot);
  }
}

std::string_view OperandMaker::path() const {
  return scaling_.state == nullptr ? std::string_view() : scaling_.state->name;
}

void OperandMaker::report(Role role, const OperandSeen& seen) const {
  watch::Session* const session = watch::current();
  if (session == nullptr || path().empty()) return;
  std::string name(path());
  name.append("/").append(role_name(role));
  report_unread(*session, std::move(name), seen);
}

}  // namespace plimsoll::ops
