#include "plimsoll/ops/linear/low_rank.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
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
  std::vector<at::Tensor> a = {}, b = {};
  std::vector<int64_t> ranks = {}, first_rows = {};
  LowRankOptions options;
  int64_t seed = 0;
  std::string path = {};  // of the layer, for an audit

  double kept() const { return 1 / (1 - options.dropout); }  // factor of what dropout leaves
  // Without dropout all read the same x, in one product.
  at::Tensor joined_a() const { return a.size() == 1 ? a.front() : at::cat(a); }
  int64_t all_ranks() const { return std::accumulate(ranks.begin(), ranks.end(), int64_t{0}); }
  // visit(i, first column of x A^T) for each adapter.
  template <class Visit>
  void each(Visit visit) const {
    int64_t column = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      visit(i, column);
      column += ranks[i];
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
  at::Tensor inner(const at::Tensor& all, size_t i, int64_t column) const { return all.narrow(1, column, ranks[i]); }
  at::Tensor outer(const at::Tensor& all, size_t i) const { return all.narrow(1, first_rows[i], b[i].size(0)); }
};

// x A^T of all adapters, [tokens, ranks].
at::Tensor projected(const at::Tensor& x, const Adapters& adapters) {
  at::Tensor result = at::empty({x.size(0), adapters.all_ranks()}, x.options().dtype(at::kFloat));
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

// Adds what adapters make of x A^T to y.
void add_products(const at::Tensor& y, const at::Tensor& inner, const Adapters& adapters) {
  adapters.each([&](size_t i, int64_t column) {
    multiply_into(adapters.inner(inner, i, column), adapters.b[i], adapters.outer(y, i),
                  {.factor = adapters.options.factor, .accumulate = true});
  });
}

// The gradient of x, given that of x A^T: added to what came through the layer, if anything did, in its memory.
at::Tensor gradient_of_x(const at::Tensor& x, const at::Tensor& through_layer, const at::Tensor& inner,
                         const Adapters& adapters) {
  const bool accumulate = through_layer.defined();
  const at::Tensor result = accumulate ? through_layer.contiguous() : at::empty(x.sizes(), x.options());
  const at::Tensor rows = as_matrix(result, "low rank");
  if (adapters.options.dropout == 0) {
    multiply_into(inner, adapters.joined_a().t(), rows, {.accumulate = accumulate});
    return result;
  }
  const at::Tensor each = at::empty(rows.sizes(), rows.options().dtype(at::kFloat)), sum = at::zeros_like(each);
  adapters.each([&](size_t i, int64_t column) {
    multiply_into(adapters.inner(inner, i, column), adapters.a[i].t(), each, {.factor = adapters.kept()});
    adapters.drop(each, i, sum, /*accumulate=*/true);
  });
  accumulate ? rows.add_(sum) : rows.copy_(sum);
  return result;
}

// Gradients of all A, given that of x A^T.
variable_list gradients_of_a(const at::Tensor& x, const at::Tensor& inner, const Adapters& adapters) {
  variable_list result;
  if (adapters.options.dropout == 0) {
    const at::Tensor grad = at::empty({adapters.all_ranks(), x.size(1)}, adapters.a.front().options());
    multiply_into(inner.t(), x.t(), grad);
    // Gradients of their own, so that none keeps the memory of the others.
    adapters.each([&](size_t i, int64_t column) {
      const at::Tensor rows = grad.narrow(0, column, adapters.ranks[i]);
      result.push_back(adapters.a.size() == 1 ? rows : rows.clone());
    });
    return result;
  }
  const at::Tensor left = at::empty(x.sizes(), x.options());
  adapters.each([&](size_t i, int64_t column) {
    adapters.drop(x, i, left);
    result.push_back(at::empty_like(adapters.a[i]));
    multiply_into(adapters.inner(inner, i, column).t(), left.t(), result.back(), {.factor = adapters.kept()});
  });
  return result;
}

struct EntrySaved {
  at::Tensor x;
  Adapters adapters;  // without B

  void exchange(SavedTensors& tensors) {
    tensors.exchange(x);
    for (at::Tensor& each : adapters.a) tensors.exchange(each);
  }
};

// x -> x for the layer, and x A^T. Backward has both gradients at once, so that it adds in place to that of the layer.
class EntryFunction : public torch::autograd::Function<EntryFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList all_a,
                               const Adapters& adapters) {
    TORCH_INTERNAL_ASSERT(all_a.size() == adapters.a.size());
    at::Tensor inner = projected(as_matrix(x, "low rank"), adapters);
    Adapters kept = adapters;
    kept.b.clear();
    save(context, EntrySaved{.x = x, .adapters = std::move(kept)});
    return {x, std::move(inner)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("low rank");
    const EntrySaved saved = load<EntrySaved>(context);
    variable_list result(1 + saved.adapters.a.size() + 1);
    if (!gradients[1].defined()) {
      result[0] = gradients[0];
      return result;
    }
    const watch::AuditedLayer layer(saved.adapters.path);
    if (context->needs_input_grad(0)) result[0] = gradient_of_x(saved.x, gradients[0], gradients[1], saved.adapters);
    variable_list of_a = gradients_of_a(as_matrix(saved.x, "low rank"), gradients[1], saved.adapters);
    std::move(of_a.begin(), of_a.end(), result.begin() + 1);
    return result;
  }
};

struct ExitSaved {
  at::Tensor inner;   // x A^T
  Adapters adapters;  // without A

  void exchange(SavedTensors& tensors) {
    tensors.exchange(inner);
    for (at::Tensor& each : adapters.b) tensors.exchange(each);
  }
};

// y of the layer, in place, and x A^T -> the sum.
class ExitFunction : public torch::autograd::Function<ExitFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& inner,
                            at::TensorList all_b, const Adapters& adapters) {
    TORCH_INTERNAL_ASSERT(all_b.size() == adapters.b.size());
    add_products(as_matrix(y, "low rank"), inner, adapters);
    context->mark_dirty({y});
    Adapters kept = adapters;
    kept.a.clear();
    save(context, ExitSaved{.inner = inner, .adapters = std::move(kept)});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    check_once_differentiable("low rank");
    const ExitSaved saved = load<ExitSaved>(context);
    const Adapters& adapters = saved.adapters;
    variable_list result(2 + adapters.b.size() + 1);
    if (!gradients[0].defined()) return result;
    const watch::AuditedLayer layer(adapters.path);
    const at::Tensor all = as_matrix(gradients[0], "low rank"), inner = at::empty_like(saved.inner);
    adapters.each([&](size_t i, int64_t column) {
      const at::Tensor grad = adapters.outer(all, i);
      multiply_into(grad, adapters.b[i].t(), adapters.inner(inner, i, column), {.factor = adapters.options.factor});
      result[2 + i] = at::empty_like(adapters.b[i]);
      multiply_into(grad.t(), adapters.inner(saved.inner, i, column).t(), result[2 + i],
                    {.factor = adapters.options.factor});
    });
    result[0] = gradients[0];
    result[1] = inner;
    return result;
  }
};

void check_options(const at::Tensor& x, const LowRankOptions& options) {
  check_values(x, "low rank", "x");
  TORCH_CHECK(x.dim() >= 1, "low rank: expected x of one dimension or more, got a scalar");
  TORCH_CHECK(!is_opaque(x), "low rank: expected tensors with memory of their own, got others");
  TORCH_CHECK(options.dropout >= 0 && options.dropout < 1, "low rank: expected dropout in [0, 1), got ",
              options.dropout);
}

void check_adapter(const at::Tensor& x, const LowRank& adapter) {
  check_values(adapter.a, "low rank", "A");
  check_values(adapter.b, "low rank", "B");
  const at::Tensor &a = adapter.a, &b = adapter.b;
  TORCH_CHECK(a.dim() == 2 && a.size(1) == x.size(-1), "low rank: expected A [rank, ", x.size(-1), "], got ",
              a.sizes());
  TORCH_CHECK(b.dim() == 2 && b.size(1) == a.size(0), "low rank: expected B [rows, ", a.size(0), "], got ", b.sizes());
}

void check_output(const at::Tensor& y, const at::Tensor& x, const Adapters& adapters) {
  check_values(y, "low rank", "y");
  TORCH_CHECK(!is_opaque(y), "low rank: expected tensors with memory of their own, got others");
  TORCH_CHECK(y.dim() == x.dim() && x.sizes().slice(0, static_cast<size_t>(x.dim()) - 1) ==
                                        y.sizes().slice(0, static_cast<size_t>(y.dim()) - 1),
              "low rank: expected x and y [..., in] and [..., out], got ", x.sizes(), " and ", y.sizes());
  for (size_t i = 0; i < adapters.b.size(); ++i) {
    const int64_t first = adapters.first_rows[i], rows = adapters.b[i].size(0);
    TORCH_CHECK(first >= 0 && first + rows <= y.size(-1), "low rank: expected rows of B within the ", y.size(-1),
                " of the layer, got ", rows, " from row ", first);
  }
}

}  // namespace

at::Tensor with_low_rank(const at::Tensor& x, const std::vector<LowRank>& adapters, const LowRankOptions& options,
                         const LayerOfInput& layer) {
  check_options(x, options);
  if (adapters.empty()) return layer(x);
  Adapters all{.options = options};
  if (options.dropout > 0) all.seed = draw_seed();
  if (const watch::Audit* audit = watch::auditing()) all.path = audit->module();
  for (const LowRank& adapter : adapters) {
    check_adapter(x, adapter);
    all.a.push_back(adapter.a.contiguous());
    all.b.push_back(adapter.b.contiguous());
    all.ranks.push_back(adapter.a.size(0));
    all.first_rows.push_back(adapter.first_row);
  }
  const variable_list entry = EntryFunction::apply(x, at::TensorList(all.a), all);
  // A layer whose input needs no gradient must not make one.
  const at::Tensor y = layer(x.requires_grad() ? entry[0] : x).contiguous();
  check_output(y, x, all);
  return ExitFunction::apply(y, entry[1], at::TensorList(all.b), all);
}

}  // namespace plimsoll::ops
