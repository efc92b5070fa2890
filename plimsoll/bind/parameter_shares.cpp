// torch.classes.plimsoll.ParameterShares: what plimsoll.shard.OSS divides, sends and clips with.
#include "plimsoll/shard/optimizer/parameter_shares.h"

#include <torch/custom_class.h>

#include <vector>

#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/shard_library.h"
#include "plimsoll/shard/engine/sharded_norm.h"

namespace plimsoll::bind {
namespace {

struct Shares : torch::CustomClassHolder {
  explicit Shares(const RanksPointer& its_ranks) : ranks(its_ranks->communicator), shares(ranks) {}

  std::shared_ptr<const shard::Communicator> ranks;
  shard::ParameterShares shares;
};

using SharesPointer = c10::intrusive_ptr<Shares>;

}  // namespace

void register_parameter_shares(torch::Library& library) {
  library.class_<Shares>("ParameterShares")
      .def(torch::init<const RanksPointer&>())
      .def("add", [](const SharesPointer& self,
                     const std::vector<at::Tensor>& parameters) { return self->shares.add(parameters); })
      .def("send", [](const SharesPointer& self, bool in_half) { self->shares.send({.in_half = in_half}); })
      .def("clip_gradients_",
           [](const SharesPointer& self, const std::vector<at::Tensor>& gradients, double max_norm, double norm_type) {
             return shard::clip_gradients_(gradients, *self->ranks, max_norm, norm_type);
           },
           "", {torch::arg("gradients"), torch::arg("max_norm"), torch::arg("norm_type")});
}

}  // namespace plimsoll::bind
