// torch.classes.plimsoll.GradientReducer: what plimsoll.shard.ShardedDataParallel averages gradients with.
#include <torch/custom_class.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/shard_checkpoint.h"
#include "plimsoll/bind/shard_library.h"
#include "plimsoll/shard/data_parallel/left_out.h"
#include "plimsoll/shard/data_parallel/reducer.h"

namespace plimsoll::bind {
namespace {

struct GradientReducer : torch::CustomClassHolder {
  GradientReducer(const RanksPointer& ranks, int64_t bucket_elements, int64_t reduce_dtype,
                  const std::string& compression)
      : reducer(std::make_shared<shard::Reducer>(
            ranks->communicator,
            shard::ReducerOptions{.caller = "ShardedDataParallel",
                                  .trains_by = "forward() or refresh_trainable()",
                                  .buckets = {.elements = bucket_elements, .first = bucket_elements},
                                  .reduce_dtype = static_cast<at::ScalarType>(reduce_dtype),
                                  .compression = shard::compression_of(compression)})) {}

  void train(std::vector<std::string> its_names, std::vector<at::Tensor> parameters, std::vector<int64_t> owners) {
    reducer->train(std::move(parameters), std::move(owners));
    names = std::move(its_names);
  }

  std::shared_ptr<shard::Reducer> reducer;
  std::vector<std::string> names;
};

using ReducerPointer = c10::intrusive_ptr<GradientReducer>;

}  // namespace

void register_gradient_reducer(torch::Library& library) {
  library.class_<GradientReducer>("GradientReducer")
      .def(torch::init<const RanksPointer&, int64_t, int64_t, const std::string&>())
      .def("train", &GradientReducer::train)
      .def("ready", [](const ReducerPointer& self, int64_t index) { self->reducer->ready(static_cast<size_t>(index)); })
      .def("begin", [](const ReducerPointer& self) { self->reducer->begin(); })
      .def("expect_trained", [](const ReducerPointer& self) { self->reducer->expect_trained(); })
      .def("set_sync", [](const ReducerPointer& self, bool sync) { return std::exchange(self->reducer->sync, sync); })
      .def("sent_bytes", [](const ReducerPointer& self) { return self->reducer->sent_bytes(); })
      .def("left_out",
           [](const ReducerPointer& self) { return pieces_of(shard::left_out_pieces(*self->reducer, self->names)); })
      .def("restore_left_out", [](const ReducerPointer& self, const c10::intrusive_ptr<Checkpoint>& checkpoint,
                                  const std::string& section) {
        shard::restore_left_out(*self->reducer, self->names, checkpoint->reader, section);
      });
}

}  // namespace plimsoll::bind
