#include "plimsoll/models/packed_texts.h"

#include <ATen/ops/empty.h>

#include <numeric>

namespace plimsoll::models {

int64_t PackedTexts::counted() const { return (targets != kNoTarget).sum().item<int64_t>(); }

at::Tensor positions_of(const std::vector<int64_t>& lengths) {
  at::Tensor positions = at::empty({1, std::accumulate(lengths.begin(), lengths.end(), int64_t{0})}, at::kLong);
  auto* place = positions.mutable_data_ptr<int64_t>();
  for (const int64_t length : lengths) {
    std::iota(place, place + length, int64_t{0});
    place += length;
  }
  return positions;
}

}  // namespace plimsoll::models
