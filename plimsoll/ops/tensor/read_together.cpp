#include "plimsoll/ops/tensor/read_together.h"

#include <ATen/ops/cat.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <map>

namespace plimsoll::ops {
namespace {

std::atomic<int64_t> reads = 0;

}  // namespace

int64_t host_reads() { return reads.load(std::memory_order_relaxed); }

std::vector<at::Tensor> read_together(at::TensorList tensors) {
  if (tensors.empty()) return {};
  std::map<c10::DeviceIndex, std::vector<size_t>> of_device;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_INTERNAL_ASSERT(tensors[i].dim() == 1);
    of_device[tensors[i].device().index()].push_back(i);
  }
  std::vector<at::Tensor> result(tensors.size());
  for (const auto& [index, places] : of_device) {
    // The copy waits for the current stream alone, and other streams may have written some of them.
    const at::Device device = tensors[places.front()].device();
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(index);
    const at::ScalarType dtype = tensors[places.front()].scalar_type();
    const bool alike = std::ranges::all_of(places, [&](size_t i) { return tensors[i].scalar_type() == dtype; });
    std::vector<at::Tensor> parts;
    for (const size_t place : places) {
      TORCH_INTERNAL_ASSERT(alike || tensors[place].nbytes() % 16 == 0);
      parts.push_back(alike ? tensors[place] : tensors[place].view(at::kByte));
    }
    const at::Tensor host = at::cat(parts).cpu();
    int64_t begin = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      const at::Tensor part = host.narrow(0, begin, parts[i].numel());
      result[places[i]] = alike ? part : part.view(tensors[places[i]].scalar_type());
      begin += parts[i].numel();
    }
  }
  reads.fetch_add(1, std::memory_order_relaxed);
  return result;
}

}  // namespace plimsoll::ops
