#include "plimsoll/bind/rank_group.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "plimsoll/bind/shard_library.h"
#include "plimsoll/ops/scaling/rank_amaxes.h"
#include "plimsoll/shard/communicator/gather_texts.h"

namespace plimsoll::bind {
namespace {

using shard::Communicator;

// Tensors of rank 0 become everybody's.
void broadcast(const RanksPointer& self, const std::vector<at::Tensor>& tensors) {
  std::vector<shard::Pending> sent;
  for (const at::Tensor& tensor : tensors) sent.push_back(self->communicator->broadcast_(tensor.detach()));
  for (shard::Pending& one : sent) one.wait();
}

}  // namespace

Ranks::Ranks(const std::string& name)
    : communicator(name.empty() ? Communicator::connect({}) : Communicator::over(name)) {}

std::shared_ptr<const ops::RankGroup> rank_group(std::string_view name, int64_t size) {
  TORCH_CHECK_VALUE(size > 1, "tp_size: expected a group of two ranks or more, got ", size);
  const auto ranks = Communicator::over_unwatched(std::string(name));
  TORCH_CHECK_VALUE(ranks->size() == size, "tp_size: expected the ", ranks->size(), " ranks of the process group '",
                    name, "', got ", size);
  return ranks;
}

std::shared_ptr<const ops::AmaxReduction> amax_reduction_over(std::string_view name, int64_t size) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int64_t>, std::weak_ptr<const ops::AmaxReduction>> reductions;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const ops::AmaxReduction>& kept = reductions[{std::string(name), size}];
  std::shared_ptr<const ops::AmaxReduction> reduction = kept.lock();
  if (reduction == nullptr) kept = reduction = ops::amax_reduction(rank_group(name, size));
  return reduction;
}

void register_ranks(torch::Library& library) {
  library.class_<Ranks>("Ranks")
      .def(torch::init<const std::string&>())
      .def_static(
          "unconnected",
          [](int64_t rank, int64_t size) { return c10::make_intrusive<Ranks>(Communicator::unconnected(rank, size)); })
      .def("rank", [](const RanksPointer& self) { return self->communicator->rank(); })
      .def("size", [](const RanksPointer& self) { return self->communicator->size(); })
      .def("split", [](const RanksPointer& self,
                       const std::string& name) { return c10::make_intrusive<Ranks>(self->communicator->split(name)); })
      .def("broadcast", &broadcast)
      .def("gather", [](const RanksPointer& self, const at::Tensor& mine, std::optional<int64_t> to) {
        return shard::gather_bytes(*self->communicator, mine, to);
      });
}

}  // namespace plimsoll::bind
