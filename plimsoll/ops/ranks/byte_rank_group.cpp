#include "plimsoll/ops/ranks/byte_rank_group.h"

#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace plimsoll::ops {
namespace {

at::Tensor bytes_of(const at::Tensor& x) { return x.contiguous().flatten().view(at::kByte); }

}  // namespace

at::Tensor ByteRankGroup::all_gather(const at::Tensor& x) const {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] *= size();
  if (x.numel() == 0) return x.new_empty(sizes);
  const at::Tensor mine = bytes_of(x);
  return start_gather(mine, mine.new_empty({size() * mine.numel()})).take().view(x.scalar_type()).view(sizes);
}

at::Tensor ByteRankGroup::reduce_scatter(const at::Tensor& x) const {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] /= size();
  if (x.numel() == 0) return x.new_empty(sizes);
  const at::Tensor terms = start_exchange(bytes_of(x)).take().view(x.scalar_type()).view({size(), -1});
  return at::sum(terms, {0}, false, at::kFloat).to(x.scalar_type()).view(sizes);
}

at::Tensor ByteRankGroup::all_reduce(const at::Tensor& x) const {
  const int64_t part = (x.numel() + size() - 1) / size();  // of each rank; zeros fill the last one
  at::Tensor flat = x.flatten();
  if (flat.numel() != part * size()) {
    flat = at::zeros({part * size()}, x.options());
    flat.narrow(0, 0, x.numel()).copy_(x.flatten());
  }
  return all_gather(reduce_scatter(flat)).narrow(0, 0, x.numel()).view(x.sizes());
}

}  // namespace plimsoll::ops
