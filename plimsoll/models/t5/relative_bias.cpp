#include "plimsoll/models/t5/relative_bias.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

namespace plimsoll::models {

int64_t RelativeBuckets::of(int64_t distance) const {
  const int64_t buckets = bidirectional ? count / 2 : count, single = buckets / 2;
  const int64_t first = bidirectional && distance > 0 ? buckets : 0;
  const int64_t steps = bidirectional ? std::abs(distance) : std::max<int64_t>(-distance, 0);
  if (steps < single) return first + steps;
  const double reach = static_cast<double>(max_distance) / static_cast<double>(single);
  const double growth = std::log(static_cast<double>(steps) / static_cast<double>(single)) / std::log(reach);
  // Distances at which a bucket starts exactly (16, 32, 64 of 128) belong to it, whatever the logarithm's rounding.
  constexpr double kRounding = 1e-9;
  const auto bucket = static_cast<int64_t>(growth * static_cast<double>(buckets - single) + kRounding);
  return first + std::min(single + bucket, buckets - 1);
}

at::Tensor relative_bias(const at::Tensor& table, const RelativeBuckets& buckets, int64_t queries, int64_t keys) {
  // Distances from -(keys - 1), the last query's from the first key, to queries - 1.
  const int64_t distances = std::max<int64_t>(queries + keys - 1, 0);
  at::Tensor bucket = at::empty({distances}, at::kLong);
  for (int64_t i = 0; i < distances; ++i) bucket.mutable_data_ptr<int64_t>()[i] = buckets.of(i - (keys - 1));
  return at::embedding(table, bucket).t().contiguous().unsqueeze(1).unsqueeze(0);
}

at::Tensor relative_bias_matrix(const at::Tensor& bias, int64_t queries) {
  // Row i of the windows begins at the distance of key 0 from query queries - 1 - i.
  return bias.squeeze(2).unfold(2, bias.size(3) - queries + 1, 1).flip(2);
}

}  // namespace plimsoll::models
