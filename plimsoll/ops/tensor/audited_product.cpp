#include "plimsoll/ops/tensor/audited_product.h"

#include <c10/util/StringUtil.h>

#include <string>
#include <utility>

#include "plimsoll/kernels/gemm/gemm_kernel.h"
#include "plimsoll/runtime/unexpected.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;
using recipe::OperandRecipe;
using recipe::Role;
using recipe::ScaleSource;

std::string name_of(format::Format format) { return std::string(format::info(format).name); }

std::string_view name_of(ScaleSource source) {
  switch (source) {
    case ScaleSource::kNone:
      return "none";
    case ScaleSource::kDelayed:
      return "delayed";
    case ScaleSource::kCurrent:
      return "current";
  }
  runtime::unexpected("audit: source of a scale", static_cast<int>(source));
}

// Extent of a scale in the matrix [rows, sum] that enters the product.
std::string text_of(recipe::Granularity granularity) {
  if (granularity == recipe::kPerTensor) return "tensor";
  if (granularity == recipe::kPerRow) return "row";
  if (granularity == recipe::Granularity{0, 1}) return "column";
  return c10::str(granularity.block_rows, "x", granularity.block_cols);
}

std::string kernel_text(const kernels::GemmKernel& kernel) {
  return c10::str(kernel.arithmetic, " ", runtime::name(kernel.isa));
}

// An operand of a product that ran.
struct Ran {
  const ScaledTensor& tensor;
  Role role;
  std::string_view codes;  // format of those whose values it is
  bool held = false;
};

class ProductRow {
 public:
  ProductRow(const Product& product, const ProductFacts& facts) : kind_(product.kind), recipe_(facts.recipe) {
    const bool is_output = kind_ == GemmKind::kOutput, is_grad_weight = kind_ == GemmKind::kGradWeight;
    add({product.a, is_output ? Role::kInput : Role::kGradOutput, facts.a_codes});
    add({product.b, is_grad_weight ? Role::kInput : Role::kWeight, facts.b_codes,
         facts.holds_weight && !is_grad_weight});
    if (!row_.decided.empty()) return;
    if (!facts.controller.empty()) {
      row_.decided = "auto";
      row_.reason = facts.controller;
      return;
    }
    const bool has_codes = recipe_ != nullptr && !recipe_->high_precision();
    row_.decided = !has_codes ? "dtype" : recipe_->high_precision(kind_) ? "override" : "recipe";
    if (row_.decided != "override") return;
    row_.reason = c10::str("the recipe's override has this product in ", name_of(recipe_->high_precision_format()));
  }

  watch::AuditRow take() { return std::move(row_); }

 private:
  std::string_view name_of_role(Role role) const {
    return role == Role::kInput ? "input" : role == Role::kWeight ? "weight" : "grad_output";
  }

  std::string form_of(format::Format format, recipe::Granularity stored, Role role) const {
    if (!format::is_code(format)) return name_of(format);
    return c10::str(name_of(format), " by ", text_of(recipe::stored_granularity(stored, role, kind_)));
  }

  // Form of the stored tensor that the recipe asks for, whatever an override makes of its codes.
  OperandRecipe asked_for(const Ran& ran) const {
    if (recipe_ == nullptr) return {.format = ran.tensor.format, .granularity = ran.tensor.granularity};
    if (recipe_->high_precision(kind_)) return {.format = recipe_->high_precision_format()};
    return recipe_->stored_operand(ran.role, kind_);
  }

  void add(const Ran& ran) {
    const ScaledTensor& tensor = ran.tensor;
    const OperandRecipe asked = asked_for(ran);
    watch::AuditOperand operand = {.name = std::string(name_of_role(ran.role)),
                                   .format = name_of(tensor.format),
                                   .values_of = std::string(ran.codes)};
    if (tensor.has_codes()) {
      const bool is_held = ran.held || recipe_ == nullptr;
      const bool is_power = asked.power_of_two && !is_held;
      operand.granularity = text_of(recipe::stored_granularity(tensor.granularity, ran.role, kind_));
      operand.source = is_held ? "held" : std::string(name_of(asked.source));
      const bool is_fp32 = tensor.scale_format == format::Format::kFp32;
      operand.scale = is_fp32 && is_power ? "power of two" : name_of(tensor.scale_format);
    }
    const bool is_as_asked =
        tensor.format == asked.format &&
        (!tensor.has_codes() || (tensor.granularity == asked.granularity &&
                                 (recipe_ == nullptr || tensor.scale_format == asked.scale_format)));
    if (!is_as_asked) explain(ran, asked);
    if (recipe_ == nullptr && tensor.has_codes()) {
      row_.decided = "file";
      row_.reason = c10::str(name_of_role(ran.role), ": codes that were given");
    }
    row_.operands.push_back(std::move(operand));
  }

  void explain(const Ran& ran, const OperandRecipe& asked) {
    row_.decided = ran.tensor.has_codes() && ran.held ? "file" : "fallback";
    const std::string why = !ran.codes.empty() ? c10::str("values of ", ran.codes, " codes that are not of that form")
                            : ran.held         ? "codes stand in the weight's place"
                                               : "no codes of that form";
    row_.reason = c10::str(name_of_role(ran.role), ": asked for ", form_of(asked.format, asked.granularity, ran.role),
                           ", got ", form_of(ran.tensor.format, ran.tensor.granularity, ran.role), ": ", why);
  }

  GemmKind kind_;
  const recipe::Recipe* recipe_;
  watch::AuditRow row_;
};

// Scales of blocks are of the codes, which have the power of two of the tensor beside them.
void describe_autoscaled(const kernels::GemmOperand& from, watch::AuditOperand& operand) {
  const kernels::ScaleView& scale = from.scale;
  const bool by_blocks = scale.data != nullptr;
  operand.granularity = by_blocks ? text_of({scale.block_rows, scale.block_cols}) : "tensor";
  operand.source = by_blocks ? name_of(ScaleSource::kCurrent) : "autoscale";
  operand.scale = by_blocks ? name_of(scale.format) : "power of two";
}

kernels::GemmOperand operand_of(const ScaledTensor& tensor, Use use) {
  return {.format = tensor.format, .scale = scale_view(tensor, use)};
}

}  // namespace

std::string_view product_name(GemmKind kind) {
  switch (kind) {
    case GemmKind::kOutput:
      return "gemm output";
    case GemmKind::kGradInput:
      return "gemm grad_input";
    case GemmKind::kGradWeight:
      return "gemm grad_weight";
  }
  runtime::unexpected("audit: product", static_cast<int>(kind));
}

void audit_product(const Product& product, format::Format output, const ProductFacts& facts) {
  watch::Audit* const audit = watch::auditing();
  if (audit == nullptr) return;
  const bool is_output = product.kind == GemmKind::kOutput, is_grad_weight = product.kind == GemmKind::kGradWeight;
  const ScaledTensor &a = product.a, &b = product.b;
  const int64_t k = is_grad_weight ? a.rows() : a.cols(), m = is_grad_weight ? a.cols() : a.rows();
  const int64_t n = is_output ? b.rows() : b.cols();
  watch::AuditRow row = ProductRow(product, facts).take();
  row.layer = facts.path;
  row.op = product_name(product.kind);
  row.output = name_of(output);
  const Use use_a = is_grad_weight ? Use::kTransposed : Use::kAsStored;
  const Use use_b = is_output ? Use::kAsStored : Use::kTransposed;
  row.kernel = a.data.is_cuda() ? "torch on " + a.data.device().str()
                                : kernel_text(kernels::gemm_kernel(operand_of(a, use_a), operand_of(b, use_b), k));
  row.operations = 2.0 * static_cast<double>(m * n * k);
  audit->add(std::move(row));
}

void audit_product(const PlainProduct& product) {
  watch::Audit* const audit = watch::auditing();
  if (audit == nullptr) return;
  watch::AuditRow row = {.layer = {},
                         .op = std::string(product.op),
                         .operands = {{.name = "a", .format = name_of(product.a.format)},
                                      {.name = "b", .format = name_of(product.b.format)}},
                         .output = name_of(product.output),
                         .kernel = kernel_text(kernels::gemm_kernel(product.a, product.b, product.k)),
                         .decided = std::string(product.decided),
                         .reason = std::string(product.reason),
                         .operations = product.operations};
  if (product.autoscaled) {
    describe_autoscaled(product.a, row.operands[0]);
    describe_autoscaled(product.b, row.operands[1]);
  }
  audit->add(std::move(row));
}

}  // namespace plimsoll::ops
