#include "plimsoll/ops/tensor/read_together.h"

#include <ATen/ops/cat.h>

#include <map>

namespace plimsoll::ops {

std::vector<at::Tensor> read_together(at::TensorList tensors) {
  std::map<c10::DeviceIndex, std::vector<size_t>> of_device;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_INTERNAL_ASSERT(tensors[i].dim() == 1 && tensors[i].nbytes() % 16 == 0);
    of_device[tensors[i].device().index()].push_back(i);
  }
  std::vector<at::Tensor> result(tensors.size());
  for (const auto& [device, places] : of_device) {
    std::vector<at::Tensor> bytes;
    for (const size_t place : places) bytes.push_back(tensors[place].view(at::kByte));
    const at::Tensor host = at::cat(bytes).cpu();
    int64_t begin = 0;
    for (const size_t place : places) {
      const auto size = static_cast<int64_t>(tensors[place].nbytes());
      result[place] = host.narrow(0, begin, size).view(tensors[place].scalar_type());
      begin += size;
    }
  }
  return result;
}

}  // namespace plimsoll::ops
