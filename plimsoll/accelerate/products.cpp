// Matrix products. torch brings linear, matmul and einsum down to these four.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <utility>

#include "plimsoll/accelerate/arguments.h"
#include "plimsoll/accelerate/operators.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/gemm_batched.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::acceleration {
namespace {

// alpha * a b + beta * added, of matrices or of batches of them. `out` is the caller's tensor, or undefined.
struct Product {
  Operator op;
  const at::Tensor& a;
  const at::Tensor& b;
  at::Tensor added = {};
  double alpha = 1, beta = 0;
  at::Tensor out = {};
};

bool fits(const at::Tensor& a, const at::Tensor& b, int64_t dims) {
  return a.dim() == dims && b.dim() == dims && a.size(-1) == b.size(-2) && (dims == 2 || a.size(0) == b.size(0)) &&
         a.numel() > 0 && b.numel() > 0;
}

Layout layout_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.stride(-1) != 1 && a.size(-2) > 1) return Layout::kTn;
  return b.stride(-2) == 1 ? Layout::kNt : Layout::kNn;
}

// A number for each column of the result [m, n]: FP32 [n], times beta; undefined: none. Never memory of `out`, whose first rows
// are written before the bias of the last ones is read.
at::Tensor bias_of(const at::Tensor& added, double beta, const at::Tensor& out) {
  if (beta == 0 || !added.defined()) return {};
  const at::Tensor row = (added.dim() == 1 ? added : added.select(0, 0)).to(at::kFloat).contiguous();
  if (beta != 1) return row.mul(beta);
  return out.defined() && row.is_alias_of(out) ? row.clone() : row;
}

// Whether `added` counts for nothing, or is one row for all.
bool is_bias(const at::Tensor& added, double beta, at::IntArrayRef sizes) {
  if (beta == 0 && added.sizes().equals(sizes)) return true;
  const int64_t n = sizes.back();
  return sizes.size() == 2 && ((added.dim() == 1 && added.size(0) == n) ||
                               (added.dim() == 2 && added.size(1) == n &&
                                (added.size(0) == 1 || (added.size(0) == sizes.front() && added.stride(0) == 0))));
}

// The kernel adds up in one chain. In FP32 its error would grow beyond that of MKL, which adds up parts of a few hundred terms.
constexpr int64_t kTermsOfAPart = 256;

void multiply_in_parts(ops::StoredProduct product) {
  const at::Tensor &a = product.a, &b = product.b;
  const int64_t terms = a.size(-1);
  if (a.scalar_type() != at::kFloat || terms <= kTermsOfAPart) return ops::multiply_as_stored(product);
  for (int64_t begin = 0; begin < terms; begin += kTermsOfAPart) {
    const int64_t count = std::min(kTermsOfAPart, terms - begin);
    ops::multiply_as_stored({.a = a.narrow(-1, begin, count),
                             .b = b.narrow(-2, begin, count),
                             .output = product.output,
                             .alpha = product.alpha,
                             .bias = begin == 0 ? product.bias : at::Tensor(),
                             .accumulate = begin > 0});
  }
}

Outcome multiply(const Product& product, at::Tensor& result) {
  const auto& [op, a, b, added, alpha, beta, out] = product;
  if (!of_one_kind(a, b) || (added.defined() && !of_one_kind(a, added)) || (out.defined() && !of_one_kind(a, out)))
    return Outcome::kDtype;
  const bool is_batch = op == Operator::kBmm || op == Operator::kBaddbmm;
  if (!fits(a, b, is_batch ? 3 : 2)) return Outcome::kShape;
  const std::array<int64_t, 3> all_sizes = {a.size(0), a.size(-2), b.size(-1)};
  const at::IntArrayRef sizes = at::IntArrayRef(all_sizes).slice(is_batch ? 0 : 1);
  if (added.defined() && !is_bias(added, beta, sizes)) return Outcome::kShape;
  if (!ops::is_readable(a) || !ops::is_readable(b)) return Outcome::kStrides;
  if (out.defined() && (!is_writable(out, sizes) || out.is_alias_of(a) || out.is_alias_of(b))) return Outcome::kStrides;
  const ProductCall call = {.format = ops::format_of(a.scalar_type(), "accelerate"),
                            .layout = layout_of(a, b),
                            .is_batch = is_batch,
                            .m = all_sizes[1],
                            .n = all_sizes[2],
                            .k = a.size(-1)};
  const Outcome choice = choose(call, processor(runtime::matmul_isa()));
  if (choice != Outcome::kReplaced) return choice;
  const at::Tensor bias = bias_of(added, beta, out);
  result = out.defined() ? out : at::empty(sizes, a.options());
  multiply_in_parts({a, b, result, static_cast<float>(alpha), bias});
  return Outcome::kReplaced;
}

// Takes the arguments off the stack where the product was made.
Outcome run(ops::CallStack& stack, size_t arguments, const Product& product) {
  at::Tensor result;
  const Outcome outcome = multiply(product, result);
  if (outcome == Outcome::kReplaced) replace_arguments(stack, arguments, std::move(result));
  return outcome;
}

Outcome mm(ops::CallStack& stack) { return run(stack, 2, {Operator::kMm, tensor(stack, 2, 0), tensor(stack, 2, 1)}); }

Outcome mm_out(ops::CallStack& stack) {
  return run(stack, 3,
             {.op = Operator::kMm, .a = tensor(stack, 3, 0), .b = tensor(stack, 3, 1), .out = tensor(stack, 3, 2)});
}

Outcome bmm(ops::CallStack& stack) { return run(stack, 2, {Operator::kBmm, tensor(stack, 2, 0), tensor(stack, 2, 1)}); }

Outcome bmm_out(ops::CallStack& stack) {
  return run(stack, 3,
             {.op = Operator::kBmm, .a = tensor(stack, 3, 0), .b = tensor(stack, 3, 1), .out = tensor(stack, 3, 2)});
}

// self, a, b, beta, alpha and, of the variants that write, out.
template <Operator op, size_t arguments>
Outcome add_product(ops::CallStack& stack) {
  const c10::IValue &beta = argument(stack, arguments, 3), &alpha = argument(stack, arguments, 4);
  if (!beta.isDouble() && !beta.isInt()) return Outcome::kDtype;
  if (!alpha.isDouble() && !alpha.isInt()) return Outcome::kDtype;
  return run(stack, arguments,
             {.op = op,
              .a = tensor(stack, arguments, 1),
              .b = tensor(stack, arguments, 2),
              .added = tensor(stack, arguments, 0),
              .alpha = alpha.toScalar().toDouble(),
              .beta = beta.toScalar().toDouble(),
              .out = arguments == 6 ? tensor(stack, arguments, 5) : at::Tensor()});
}

}  // namespace

std::vector<Variant> product_variants() {
  return {{"mm", Operator::kMm, mm},
          {"mm.out", Operator::kMm, mm_out},
          {"addmm", Operator::kAddmm, add_product<Operator::kAddmm, 5>},
          {"addmm.out", Operator::kAddmm, add_product<Operator::kAddmm, 6>},
          {"bmm", Operator::kBmm, bmm},
          {"bmm.out", Operator::kBmm, bmm_out},
          {"baddbmm", Operator::kBaddbmm, add_product<Operator::kBaddbmm, 5>},
          {"baddbmm.out", Operator::kBaddbmm, add_product<Operator::kBaddbmm, 6>}};
}

}  // namespace plimsoll::acceleration
