#include "plimsoll/shard/average/compressed_average.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace plimsoll::shard {
namespace {

int64_t part_of(int64_t elements, int64_t ranks) {
  const int64_t each = (elements + ranks - 1) / ranks;
  return (each + kCompressedBlock - 1) / kCompressedBlock * kCompressedBlock;
}

}  // namespace

CompressedAverage::CompressedAverage(Compression compression, std::shared_ptr<const ops::ByteRankGroup> ranks,
                                     int64_t rank, const Averaging& averaging, int64_t elements)
    : compression_(compression),
      ranks_(std::move(ranks)),
      rank_(rank),
      postdivide_(averaging.postdivide),
      elements_(elements),
      part_(part_of(elements, ranks_->size())),
      left_(at::zeros({ranks_->size(), part_}, at::kFloat)),
      sum_left_(at::zeros({1, part_}, at::kFloat)) {}

void CompressedAverage::start(const at::Tensor& values, const at::Tensor& flags) {
  const int64_t size = ranks_->size();
  at::Tensor parts = at::zeros({size * part_}, at::kFloat);
  parts.narrow(0, 0, elements_).copy_(values);
  const at::Tensor bytes = compress_and_keep_rest(parts.view({size, part_}), left_, compression_);
  part_bytes_ = bytes.size(1);
  const at::Tensor message = at::cat({bytes, flags.expand({size, flags.numel()})}, 1);
  sent_bytes_ = message.numel() / size * (size - 1);
  arriving_ = ranks_->start_exchange(message.view({-1}));
}

void CompressedAverage::advance() {
  const int64_t size = ranks_->size();
  const at::Tensor received = arriving_.take().view({size, -1});
  flags_ = received.slice(1, part_bytes_).amax(0);
  const at::Tensor terms = decompress(received.slice(1, 0, part_bytes_).contiguous(), part_, compression_);
  at::Tensor sum = terms.sum(0, /*keepdim=*/true);
  if (postdivide_ != 1) sum.div_(postdivide_);
  const at::Tensor mine = compress_and_keep_rest(sum, sum_left_, compression_).view({-1});
  sent_bytes_ += mine.numel() * (size - 1);
  arriving_ = ranks_->start_gather(mine, at::empty({size * mine.numel()}, at::kByte));
}

CompressedAverage::Result CompressedAverage::finish() {
  const at::Tensor all = arriving_.take().view({ranks_->size(), part_bytes_});
  return {.values = decompress(all, part_, compression_).view({-1}).narrow(0, 0, elements_), .flags = flags_};
}

void CompressedAverage::abandon() { arriving_ = {}; }

CompressedAverage::LeftOut CompressedAverage::LeftOut::of(int64_t first, int64_t count) const {
  const int64_t from = std::clamp(first, begin, begin + sums.numel()),
                to = std::clamp(first + count, begin, begin + sums.numel());
  return {.values = values.narrow(0, first, count),
          .sums = sums.narrow(0, from - begin, to - from),
          .begin = std::clamp(from - first, int64_t{0}, count)};
}

CompressedAverage::LeftOut CompressedAverage::left_out() const {
  const int64_t begin = std::min(rank_ * part_, elements_), size = std::min(part_, elements_ - begin);
  return {.values = left_.view({-1}).narrow(0, 0, elements_),
          .sums = sum_left_.view({-1}).narrow(0, 0, size),
          .begin = begin};
}

at::Tensor CompressedAverage::sums_left_out() const {
  return ranks_->all_gather(sum_left_).view({-1}).narrow(0, 0, elements_);
}

}  // namespace plimsoll::shard
