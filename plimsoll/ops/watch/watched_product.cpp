#include "plimsoll/ops/watch/watched_product.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/ops/tensor/audited_product.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/watch/operand_seen.h"
#include "plimsoll/ops/watch/watch_facts.h"
#include "plimsoll/ops/watch/watched_operators.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/call_site.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::ops {
namespace {

using recipe::GemmKind;

// The values before they were rounded to the format of the output.
at::Tensor in_fp32(const Product& product, const at::Tensor& output) {
  at::Tensor wide = at::empty(output.sizes(), output.options().dtype(at::kFloat));
  Product again = product;
  again.epilogue.accumulate = false;
  again.epilogue.column_sum = nullptr;
  again.amax = {};
  multiply(again, wide);
  return wide;
}

at::Tensor values_of(const ScaledTensor& operand) { return dequantize(operand, at::kFloat); }

watch::TensorFacts operand_facts(std::string name, const ScaledTensor& operand, const at::Tensor& values) {
  return {
      .name = std::move(name), .shape = values.sizes().vec(), .format = operand.format, .amax = amax_of_any(values)};
}

// The vectors whose dot product the first bad element is.
watch::Term largest_term(const Product& product, const at::Tensor& a, const at::Tensor& b,
                         const watch::Incident& incident) {
  const at::Tensor left = a.select(product.kind == GemmKind::kGradWeight ? 1 : 0, incident.row);
  const at::Tensor right = b.select(product.kind == GemmKind::kOutput ? 0 : 1, incident.column);
  const int64_t index = (left.to(at::kDouble) * right.to(at::kDouble)).abs().argmax().item<int64_t>();
  return {.index = index, .a = left[index].item<double>(), .b = right[index].item<double>()};
}

// NaN > Inf > finite.
float largest(float a, float b) { return std::isnan(a) || a > b ? a : b; }

// The first NaN among operands was made by what is fused with this product, such as a norm.
watch::Harm harm_to(const watch::Session& session, float operands, float result) {
  const std::vector<watch::Incident> incidents = session.incidents().all();
  const bool is_known = !incidents.empty() && incidents.back().harm == watch::Harm::kNanProducing;
  return std::isnan(operands) && !is_known ? watch::Harm::kNanProducing : harm_of(operands, result);
}

struct Outcome {
  const at::Tensor& output;
  float amax;
  int64_t call;
  uintptr_t instruction;
};

// Examines a result that holds Inf or NaN: an incident if the operands are finite, else one's consequence.
void examine(watch::Session& session, const WatchedProduct& watched, const Outcome& outcome) {
  const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
  const Product& product = watched.product;
  watch::Incident incident{.path = std::string(watched.path), .op = std::string(product_name(product.kind))};
  incident.call = outcome.call;
  if (!find_bad(outcome.output, incident)) return;
  if (!product.b.data.is_contiguous()) return;  // held codes are packed alone, so no term of theirs can be named
  const at::Tensor a = values_of(product.a), b = values_of(product.b);
  incident.operands = {operand_facts(product.kind == GemmKind::kOutput ? "input" : "grad_output", product.a, a),
                       operand_facts(product.kind == GemmKind::kGradWeight ? "input" : "weight", product.b, b)};
  const float operands = largest(incident.operands[0].amax, incident.operands[1].amax);
  if (!std::isfinite(operands)) {
    session.incidents().follow(watched.path, harm_to(session, operands, amax_of_any(outcome.output)));
    return;
  }
  if (session.incidents().knows(watched.path)) return;
  incident.result = facts_of(std::string(watched.result), outcome.output);
  incident.result.amax = outcome.amax;
  incident.largest_term = largest_term(product, a, b, incident);
  if (!product.epilogue.accumulate) {
    const at::Tensor wide = in_fp32(product, outcome.output);
    incident.value = element_at(wide, incident);
    if (session.mode() == watch::Mode::kShadow) incident.replay = compare(wide, outcome.output);
  }
  if (outcome.instruction != 0) incident.instruction = watch::describe_address(outcome.instruction);
  incident.backtrace = watch::backtrace();
  session.incidents().add(std::move(incident));
}

// Codes, and what the product adds to or is multiplied by, are not kept.
bool can_run_again(const Product& product, const at::Tensor& output) {
  return !product.a.has_codes() && !product.b.has_codes() && is_real(output) && !product.epilogue.accumulate &&
         product.epilogue.activation != kernels::GemmActivation::kDGelu;
}

ShadowedOp shadowed(const WatchedProduct& watched, const at::Tensor& output) {
  const Product& product = watched.product;
  ShadowedOp op{.path = std::string(watched.path), .operands = {product.a.data, product.b.data}, .results = {output}};
  if (!can_run_again(product, output)) return op;
  kernels::GemmEpilogue epilogue = product.epilogue;
  epilogue.column_sum = nullptr;
  epilogue.aux = nullptr;
  const std::vector<float> bias(epilogue.bias, epilogue.bias + (epilogue.bias == nullptr ? 0 : output.size(-1)));
  op.again = [kind = product.kind, a = product.a, b = product.b, epilogue, bias, output](const Widen& widen) {
    const auto wide = [&](const ScaledTensor& operand) {
      return plain_values(widen(operand.data).contiguous(), format::Format::kFp32);
    };
    const ScaledTensor left = wide(a), right = wide(b);
    Product again{.kind = kind, .a = left, .b = right, .epilogue = epilogue};
    again.epilogue.bias = bias.empty() ? nullptr : bias.data();
    at::Tensor result = at::empty(output.sizes(), output.options().dtype(at::kFloat));
    multiply(again, result);
    return std::vector<at::Tensor>{result};
  };
  return op;
}

void count(watch::Session& session, const WatchedProduct& watched, const at::Tensor& output,
           const watch::Observation& seen, const std::string& slot) {
  if (watched.product.epilogue.accumulate || !watch::worth_counting(seen.amax, seen.format, seen.inv_scale)) return;
  const at::Tensor wide = in_fp32(watched.product, output);
  const std::span<const float> values(wide.const_data_ptr<float>(), static_cast<size_t>(wide.numel()));
  session.slots().count(slot, watch::count(values, seen.format, seen.inv_scale));
}

}  // namespace

void multiply(const WatchedProduct& watched, const at::Tensor& output, format::Format codes) {
  ProductFacts facts = watched.facts;
  facts.path = watched.path;
  audit_product(watched.product, output.scalar_type() == at::kByte ? codes : format_of(output.scalar_type(), "gemm"),
                facts);
  const watch::AuditRecording nobody(nullptr);  // one row of it, whatever the watch runs again
  watch::Session* const session = watch::current();
  if (session == nullptr || watched.path.empty()) return multiply(watched.product, output, codes);
  observe_operators(*session);
  session->take_overflow();  // of an earlier kernel, which nobody asked about
  Product product = watched.product;
  if (!product.amax.defined()) product.amax = AmaxSlot(output.device());
  multiply(product, output, codes);
  const uintptr_t instruction = session->take_overflow();
  const OperandSeen unread = {
      .format = output.scalar_type() == at::kByte ? codes : format_of(output.scalar_type(), "gemm"),
      .amax = product.amax,
      .scale = product.scale};
  std::string slot(watched.path);
  slot.append("/").append(watched.result);
  if (session->mode() == watch::Mode::kGuard) return report_unread(*session, std::move(slot), unread);
  const watch::Observation seen = read_on_host(unread);
  const float amax = seen.amax;
  const int64_t call = session->slots().report(slot, seen);
  if (session->mode() == watch::Mode::kCount) count(*session, watched, output, seen, slot);
  if (session->follows()) {
    // A processor without the exception, and portable code, leave the amax.
    const bool beyond = instruction != 0 || !(amax <= format::max_finite(seen.format));
    if (beyond && !format::is_fp8(seen.format)) examine(*session, watched, {output, amax, call, instruction});
    if (ShadowWindow* const window = shadow_window(*session)) {
      const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
      window->add(shadowed(watched, output));
    }
    session->incidents().step(watched.path, amax, watch::headroom_bits(seen));
    if (session->stops()) stop_at_incident(*session);
  }
}

}  // namespace plimsoll::ops
