#include "plimsoll/shard/data_parallel/compressed_reduction.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

namespace plimsoll::shard {

CompressedReduction::CompressedReduction(Compression compression, std::shared_ptr<const Communicator> ranks,
                                         int64_t owner, const Averaging& averaging, int64_t elements)
    : compression_(compression),
      ranks_(std::move(ranks)),
      owner_(owner),
      postdivide_(averaging.postdivide),
      elements_(elements),
      left_(at::zeros({1, (elements + kCompressedBlock - 1) / kCompressedBlock * kCompressedBlock}, at::kFloat)) {}

void CompressedReduction::start(const at::Tensor& values, const at::Tensor& flags) {
  at::Tensor padded = at::zeros_like(left_);
  padded.view({-1}).narrow(0, 0, elements_).copy_(values);
  const at::Tensor bytes = compress_and_keep_rest(padded, left_, compression_);
  value_bytes_ = bytes.size(1);
  const at::Tensor message = at::cat({bytes.view({-1}), flags});
  sent_bytes_ = message.numel();
  arriving_ = ranks_->start_collect(message, owner_);
}

CompressedReduction::Result CompressedReduction::finish() {
  const at::Tensor received = arriving_.take();
  if (ranks_->rank() != owner_) return {};
  const at::Tensor rows = received.view({ranks_->size(), -1});
  at::Tensor sum = decompress(rows.slice(1, 0, value_bytes_).contiguous(), left_.size(1), compression_).sum(0);
  if (postdivide_ != 1) sum.div_(postdivide_);
  return {.values = sum.narrow(0, 0, elements_), .flags = rows.slice(1, value_bytes_).amax(0)};
}

}  // namespace plimsoll::shard
