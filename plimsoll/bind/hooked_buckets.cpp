// torch.classes.plimsoll.HookedBuckets: what plimsoll.shard's hook of DistributedDataParallel averages with.
#include "plimsoll/shard/data_parallel/hooked_buckets.h"

#include <torch/custom_class.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plimsoll/bind/named_option.h"
#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/shard_checkpoint.h"
#include "plimsoll/bind/shard_library.h"

namespace plimsoll::bind {
namespace {

struct Hooked : torch::CustomClassHolder {
  Hooked(const std::string& compression, const RanksPointer& ranks, const std::vector<std::string>& names,
         const std::vector<int64_t>& elements)
      : buckets(named_option(shard::kCompressions, "compression", compression), ranks->communicator,
                listed(names, elements)) {}

  static std::vector<shard::HookedBuckets::Parameter> listed(const std::vector<std::string>& names,
                                                             const std::vector<int64_t>& elements) {
    TORCH_CHECK_VALUE(
        names.size() == elements.size() && std::ranges::all_of(elements, [](int64_t n) { return n >= 0; }),
        "compression: expected a name and a number of elements for each parameter, got ", names.size(), " and ",
        elements.size());
    std::vector<shard::HookedBuckets::Parameter> list;
    for (size_t i = 0; i < names.size(); ++i) list.push_back({names[i], elements[i]});
    return list;
  }

  shard::HookedBuckets buckets;
};

using HookedPointer = c10::intrusive_ptr<Hooked>;

std::vector<int64_t> start(const HookedPointer& self, int64_t index, bool is_last, const std::vector<int64_t>& places,
                           std::vector<at::Tensor> gradients) {
  return self->buckets.start({.index = index,
                              .is_last = is_last,
                              .parameters = {places.begin(), places.end()},
                              .gradients = std::move(gradients)});
}

std::vector<std::tuple<at::Tensor, at::Tensor>> left_out(const HookedPointer& self) {
  std::vector<std::tuple<at::Tensor, at::Tensor>> list;
  for (const auto& left : self->buckets.left_out()) list.emplace_back(left.values, left.sums);
  return list;
}

}  // namespace

void register_hooked_buckets(torch::Library& library) {
  library.class_<Hooked>("HookedBuckets")
      .def(torch::init<const std::string&, const RanksPointer&, const std::vector<std::string>&,
                       const std::vector<int64_t>&>())
      .def("start", &start)
      .def("sent_bytes", [](const HookedPointer& self) { return self->buckets.sent_bytes(); })
      .def("left_out", &left_out)
      .def("restore", [](const HookedPointer& self, const c10::intrusive_ptr<Checkpoint>& checkpoint,
                         const std::string& section) { self->buckets.restore(checkpoint->reader, section); });
}

}  // namespace plimsoll::bind
