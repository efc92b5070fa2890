#include "plimsoll/app/divergence.h"

#include <ATen/TensorOperators.h>

#include <cmath>

#include "plimsoll/runtime/threads.h"

namespace plimsoll::app {

std::vector<double> divergences(const at::Tensor& log_p, const at::Tensor& log_q) {
  const int64_t rows = log_p.size(0), classes = log_p.size(1);
  const auto *p = log_p.const_data_ptr<double>(), *q = log_q.const_data_ptr<double>();
  std::vector<double> result(static_cast<size_t>(rows));
  runtime::parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      double sum = 0;
      for (int64_t i = row * classes; i < (row + 1) * classes; ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
      result[static_cast<size_t>(row)] = sum;
    }
  });
  return result;
}

int64_t agreeing_rows(const at::Tensor& log_p, const at::Tensor& log_q, int64_t most) {
  const at::Tensor first = log_p.argmax(-1, /*keepdim=*/true), of_first = log_q.gather(1, first);
  at::Tensor agrees = log_q.gt(of_first).sum(-1).lt(most);
  if (most == 1) agrees = log_q.argmax(-1).eq(first.squeeze(1));  // of two that are alike the first one
  const at::Tensor has_nan = log_p.isnan().any(-1).logical_or(log_q.isnan().any(-1));
  return agrees.logical_and(has_nan.logical_not()).sum().item<int64_t>();
}

}  // namespace plimsoll::app
