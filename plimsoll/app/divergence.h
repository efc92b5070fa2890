// Kullback-Leibler divergence of distributions, for figures that are the same in every run.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace plimsoll::app {

// The divergence of each row, sum of p (log p - log q), in nats. log_p, log_q: fp64 [rows, classes], contiguous. Each
// exponential is the C library's and the sum runs in the order of the classes, so that a row's bits depend on nothing
// beside it.
std::vector<double> divergences(const at::Tensor& log_p, const at::Tensor& log_q);

// Rows in which fewer than `most` classes are likelier by log_q than the one that is likeliest by log_p; with 1, rows whose
// likeliest class is the same. NaN agrees with nothing. fp64 [rows, classes] both.
int64_t agreeing_rows(const at::Tensor& log_p, const at::Tensor& log_q, int64_t most);

}  // namespace plimsoll::app
