#include "plimsoll/ops/linear/low_rank.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <string>

#include "plimsoll/kernels/dropout/dropout.h"
#include "plimsoll/kernels/gemm/gemm.h"
#include "plimsoll/ops/tensor/arguments.h"
#include "plimsoll/ops/tensor/audited_product.h"
#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/tensor/random_seed.h"
#include "plimsoll/ops/tensor/saved.h"
#include "plimsoll/ops/tensor/traffic.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/profile.h"

namespace plimsoll::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Epilogue {
  double factor = 1;
  bool accumulate = false;
};

// output [m, n] = factor * a [m, k] b [n, k]^T; each may be part of a matrix, or transposed.
void multiply_into(const at::Tensor& a, const at::Tensor& b, const at::Tensor& output, const Epilogue& epilogue = {}) {
  const auto operand = [](const at::Tensor& x) {
    return kernels::GemmOperand{.data = x.const_data_ptr(),
                                .format = format_of(x.scalar_type(), "low rank"),
                                .row_stride = x.stride(0),
                                .k_stride = x.stride(1)};
  };
  const int64_t m = a.size(0), n = b.size(0), k = a.size(1);
  const double operations = 2.0 * static_cast<double>(m * n * k);
  const format::Format format = format_of(output.scalar_type(), "low rank");
  const kernels::GemmOperand left = operand(a), right = operand(b);
  const watch::Span span("gemm low rank", {.operations = operations, .bytes = traffic(a, b, output)});
  audit_product({.op = "gemm low rank",
                 .a = left,
                 .b = right,
                 .k = k,
                 .output = format,
                 .operations = operations,
                 .decided = "layer",
                 .reason = "adapters multiply values as they are"});
  kernels::gemm({.a = left,
                 .b = right,
                 .m = m,
                 .n = n,
                 .k = k,
                 .output = output.mutable_data_ptr(),
                 .output_format = format,
                 .output_stride = output.stride(0),
                 .epilogue = {.alpha = static_cast<float>(epilogue.factor), .accumulate = epilogue.accumulate}});
}

struct Adapters {
  std::vector<at::Tensor> a, b;
  std::vector<int64_t> first_rows;
  LowRankOptions options;
  int64_t seed = 0;
  std::string path = {};  // of the layer, for an audit

  double kept() const { return 1 / (1 - options.dropout); }  // factor of what dropout leaves
  // Without dropout all read the same x, in one product.
  at::Tensor joined_a() const { return a.size() == 1 ? a.front() : at::cat(a); }
  int64_t ranks() const {
    int64_t sum = 0;
    for (const at::Tensor& each : a) sum += each.size(0);
    return sum;
  }
  // visit(i, first column of x A^T) for each adapter.
  template <class Visit>
  void each(Visit visit) const {
    int64_t column = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      visit(i, column);
      column += a[i].size(0);
    }
  }
  // Dropout for adapter i, the same each time: what stays of x into y, or added to it.
  void drop(const at::Tensor& x, size_t i, const at::Tensor& y, bool accumulate = false) const {
    const at::Tensor source = x.contiguous();
    kernels::dropout({.x = source.const_data_ptr(),
                      .format = format_of(x.scalar_type(), "low rank"),
                      .y = y.mutable_data_ptr(),
                      .accumulate = accumulate,
                      .count = x.numel(),
                      .words = {.seed = static_cast<uint64_t>(seed), .step = i},
                      .probability = options.dropout});
  }
  // The columns of x A^T, or of its gradient, and those of y or its gradient.
  at::Tensor inner(const at::Tensor& all, size_t i, int64_t column) const {
    return all.narrow(1, column, a[i].size(0));
  }
  at::Tensor outer(const at::Tensor& all, size_t i) const { return all.narrow(1, first_rows[i], b[i].size(0)); }
};

// x A^T of all adapters, [tokens, ranks].
at::Tensor projected(const at::Tensor& x, const Adapters& adapters) {
  at::Tensor result = at::empty({x.size(0), adapters.ranks()}, x.options().dtype(at::kFloat));
  if (adapters.options.dropout == 0) {
    multiply_into(x, adapters.joined_a(), result);
    return result;
  }
  const at::Tensor left = at::empty(x.sizes(), x.options());
  adapters.each([&](size_t i, int64_t column) {
    adapters.drop(x, i, left);
    multiply_into(left, adapters.a[i], adapters.inner(result, i, column), {.factor = adapters.kept()});
  });
  return result;
}

at::Tensor sum_of(const at::Tensor& y, const at::Tensor& inner, const Adapters& adapters) {
  const at::Tensor result = y.clone(at::MemoryFormat::Contiguous);
  adapters.each([&](size_t i, int64_t column) {
    multiply_into(adapters.inner(inner, i, column), adapters.b[i], adapters.outer(result, i),
                  {.factor = adapters.options.factor, .accumulate = true});
  });
  return result;
}

struct LowRankSaved {
  at::Tensor x, inner;  // inner: x A^T
  Adapters adapters;

  void exchange(SavedTensors& tensors) {
    tensors.exchange(x);
    tensors.exchange(inner);
    for (at::Tensor& each : adapters.a) tensors.exchange(each);
    for (at::Tensor& each : adapters.b) tensors.exchange(each);
  }
};

struct LowRankGradients {
  at::Tensor x;
  std::vector<at::Tensor> a, b;
};

class LowRankBackward {
 public:
  LowRankBackward(const LowRankSaved& saved, const at::Tensor& grad)
      : saved_(saved),
        adapters_(saved.adapters),
        x_(as_matrix(saved.x, "low rank")),
        grad_(as_matrix(grad, "low rank")),
        inner_(at::empty_like(saved.inner)) {}

  LowRankGradients run(bool wants_x) {
    const watch::AuditedLayer layer(adapters_.path);
    adapters_.each([&](size_t i, int64_t column) {
      const at::Tensor grad = adapters_.outer(grad_, i);
      multiply_into(grad, adapters_.b[i].t(), adapters_.inner(inner_, i, column), {.factor = adapters_.options.factor});
      result_.b.push_back(at::empty_like(adapters_.b[i]));
      multiply_into(grad.t(), adapters_.inner(saved_.inner, i, column).t(), result_.b.back(),
                    {.factor = adapters_.options.factor});
    });
    adapters_.options.dropout == 0 ? through_all(wants_x) : through_masks(wants_x);
    if (result_.x.defined()) result_.x = result_.x.to(saved_.x.scalar_type()).view_as(saved_.x);
    return std::move(result_);
  }

 private:
  void through_all(bool wants_x) {
    const at::Tensor a = adapters_.joined_a(), grad = at::empty_like(a);
    multiply_into(inner_.t(), x_.t(), grad);
    // Gradients of their own, so that none keeps the memory of the others.
    adapters_.each([&](size_t i, int64_t column) {
      const at::Tensor rows = grad.narrow(0, column, adapters_.a[i].size(0));
      result_.a.push_back(adapters_.a.size() == 1 ? rows : rows.clone());
    });
    if (!wants_x) return;
    result_.x = at::empty_like(x_);
    multiply_into(inner_, a.t(), result_.x);
  }

  void through_masks(bool wants_x) {
    const at::Tensor left = at::empty(x_.sizes(), x_.options());
    const at::Tensor each = wants_x ? at::empty(x_.sizes(), x_.options().dtype(at::kFloat)) : at::Tensor();
    if (wants_x) result_.x = at::zeros_like(each);
    adapters_.each([&](size_t i, int64_t column) {
      const at::Tensor inner = adapters_.inner(inner_, i, column);
      adapters_.drop(x_, i, left);
      result_.a.push_back(at::empty_like(adapters_.a[i]));
      multiply_into(inner.t(), left.t(), result_.a.back(), {.factor = adapters_.kept()});
      if (!wants_x) return;
      multiply_into(inner, adapters_.a[i].t(), each, {.factor = adapters_.kept()});
      adapters_.drop(each, i, result_.x, /*accumulate=*/true);
    });
  }

  const LowRankSaved& saved_;
  const Adapters& adapters_;
  at::Tensor x_, grad_;
  at::Tensor inner_;  // gradient of x A^T
  LowRankGradients result_;
};

class LowRankFunction : public torch::autograd::Function<LowRankFunction> {
 public:
  // weights: all of A, then all of B.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& x, at::TensorList weights,
                            const Adapters& adapters) {
    TORCH_INTERNAL_ASSERT(weights.size() == 2 * adapters.a.size());
    at::Tensor inner = projected(as_matrix(x, "low rank"), adapters);
    const at::Tensor result = sum_of(as_matrix(y, "low rank"), inner, adapters).view(y.sizes());
    save(context, LowRankSaved{.x = x, .inner = std::move(inner), .adapters = adapters});
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("low rank");
    const LowRankSaved saved = load<LowRankSaved>(context);
    const size_t count = saved.adapters.a.size();
    variable_list result(2 + 2 * count + 1);
    if (!gradients[0].defined()) return result;
    LowRankGradients got = LowRankBackward(saved, gradients[0]).run(context->needs_input_grad(1));
    result[0] = gradients[0];
    result[1] = std::move(got.x);
    for (size_t i = 0; i < count; ++i) {
      result[2 + i] = std::move(got.a[i]);
      result[2 + count + i] = std::move(got.b[i]);
    }
    return result;
  }
};

void check(const at::Tensor& y, const at::Tensor& x, const LowRank& adapter) {
  check_values(adapter.a, "low rank", "A");
  check_values(adapter.b, "low rank", "B");
  const at::Tensor &a = adapter.a, &b = adapter.b;
  TORCH_CHECK(a.dim() == 2 && a.size(1) == x.size(-1), "low rank: expected A [rank, ", x.size(-1), "], got ",
              a.sizes());
  TORCH_CHECK(b.dim() == 2 && b.size(1) == a.size(0), "low rank: expected B [rows, ", a.size(0), "], got ", b.sizes());
  TORCH_CHECK(adapter.first_row >= 0 && adapter.first_row + b.size(0) <= y.size(-1),
              "low rank: expected rows of B within the ", y.size(-1), " of the layer, got ", b.size(0), " from row ",
              adapter.first_row);
}

}  // namespace

at::Tensor add_low_rank(const at::Tensor& y, const at::Tensor& x, const std::vector<LowRank>& adapters,
                        const LowRankOptions& options) {
  check_values(y, "low rank", "y");
  check_values(x, "low rank", "x");
  TORCH_CHECK(!is_opaque(y) && !is_opaque(x), "low rank: expected tensors with memory of their own, got others");
  TORCH_CHECK(
      y.dim() >= 1 && x.dim() == y.dim() &&
          x.sizes().slice(0, static_cast<size_t>(x.dim()) - 1) == y.sizes().slice(0, static_cast<size_t>(y.dim()) - 1),
      "low rank: expected x and y [..., in] and [..., out], got ", x.sizes(), " and ", y.sizes());
  TORCH_CHECK(options.dropout >= 0 && options.dropout < 1, "low rank: expected dropout in [0, 1), got ",
              options.dropout);
  if (adapters.empty()) return y;
  Adapters all{.a = {}, .b = {}, .first_rows = {}, .options = options};
  if (options.dropout > 0) all.seed = draw_seed();
  if (const watch::Audit* audit = watch::auditing()) all.path = audit->module();
  for (const LowRank& adapter : adapters) {
    check(y, x, adapter);
    all.a.push_back(adapter.a.contiguous());
    all.b.push_back(adapter.b.contiguous());
    all.first_rows.push_back(adapter.first_row);
  }
  std::vector<at::Tensor> weights = all.a;
  weights.insert(weights.end(), all.b.begin(), all.b.end());
  return LowRankFunction::apply(y, x, at::TensorList(weights), all);
}

}  // namespace plimsoll::ops
