// T5's positions: a number for each head and each distance between a query and a key, added to the scores.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace plimsoll::models {

struct RelativeBuckets {
  int64_t count = 32;
  int64_t max_distance = 128;
  bool bidirectional = true;  // the upper half of the buckets is for keys after the query; else those are in bucket 0

  // The bucket of a key that lies `distance` after the query. The first half of the buckets (of each direction's) holds one
  // distance each, the second half grows to max_distance by a constant factor. Source: Raffel et al. 2020.
  int64_t of(int64_t distance) const;
};

// table [buckets, heads] -> [1, heads, 1, queries + keys - 1] in its dtype, differentiable: the bias of each distance,
// as ops::attention takes it. The last query is at the last key's place.
at::Tensor relative_bias(const at::Tensor& table, const RelativeBuckets& buckets, int64_t queries, int64_t keys);

// The same for each query and key: [1, heads, queries, keys].
at::Tensor relative_bias_matrix(const at::Tensor& bias, int64_t queries);

}  // namespace plimsoll::models
