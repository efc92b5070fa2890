#include "plimsoll/ops/scaling/rank_amaxes.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

namespace plimsoll::ops {
namespace {

// The count twice: its maximum over the ranks, and minus its minimum.
constexpr size_t kHeader = 2;

}  // namespace

AmaxSlot largest_amax(const RankGroup& group, const AmaxSlot& amax) {
  std::array<int32_t, 1> bits{std::bit_cast<int32_t>(*amax.data())};
  group.all_reduce_max(bits);
  return AmaxSlot::of(std::bit_cast<float>(bits[0]));
}

void reduce_amaxes(const RankGroup& group, std::span<float> amaxes) {
  const auto count = static_cast<int32_t>(amaxes.size());
  std::vector<int32_t> bits(kHeader + std::max(amaxes.size(), kAmaxesAtOnce), 0);
  bits[0] = count;
  bits[1] = -count;
  std::ranges::transform(amaxes, bits.begin() + kHeader, [](float amax) { return std::bit_cast<int32_t>(amax); });
  const std::span<int32_t> all = bits;
  group.all_reduce_max(all.first(kHeader + kAmaxesAtOnce));
  TORCH_CHECK(bits[0] == count && bits[1] == -count,
              "fp8_group: expected the same tensors to be quantized on each of its ", group.size(),
              " ranks, got amaxes of ", count, " on this rank, and from ", -bits[1], " to ", bits[0], " on all");
  if (all.size() > kHeader + kAmaxesAtOnce) group.all_reduce_max(all.subspan(kHeader + kAmaxesAtOnce));
  std::ranges::transform(all.subspan(kHeader, amaxes.size()), amaxes.begin(),
                         [](int32_t amax) { return std::bit_cast<float>(amax); });
}

std::shared_ptr<const AmaxReduction> amax_reduction(std::shared_ptr<const RankGroup> group) {
  auto reduction = std::make_shared<AmaxReduction>();
  reduction->all_reduce_max = [group = std::move(group)](std::span<float> amaxes) { reduce_amaxes(*group, amaxes); };
  return reduction;
}

}  // namespace plimsoll::ops
