// torch.classes.plimsoll.GradientReducer: what plimsoll.shard.ShardedDataParallel averages gradients with.
#include <torch/custom_class.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/bind/named_option.h"
#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/shard_checkpoint.h"
#include "plimsoll/bind/shard_library.h"
#include "plimsoll/shard/communicator/same_model.h"
#include "plimsoll/shard/data_parallel/left_out.h"
#include "plimsoll/shard/data_parallel/reducer.h"

namespace plimsoll::bind {
namespace {

struct GradientReducer : torch::CustomClassHolder {
  explicit GradientReducer(std::shared_ptr<shard::Reducer> made) : reducer(std::move(made)) {}

  // A collective.
  void train(std::vector<std::string> its_names, std::vector<at::Tensor> parameters, std::vector<int64_t> owners) {
    if (reducer->ranks().is_connected()) {
      std::vector<std::pair<std::string, at::Tensor>> named;
      for (size_t i = 0; i < parameters.size(); ++i) named.emplace_back(its_names.at(i), parameters[i]);
      shard::expect_same_tensors(named, "", reducer->ranks());
    }
    reducer->train(std::move(parameters), std::move(owners));
    names = std::move(its_names);
  }

  std::shared_ptr<shard::Reducer> reducer;
  std::vector<std::string> names;
};

using ReducerPointer = c10::intrusive_ptr<GradientReducer>;

ReducerPointer new_reducer(const RanksPointer& ranks, int64_t bucket_elements, at::ScalarType reduce_dtype,
                           std::string_view compression) {
  shard::ReducerOptions options = {.caller = "ShardedDataParallel",
                                   .trains_by = "forward() or refresh_trainable()",
                                   .buckets = {.elements = bucket_elements, .first = bucket_elements},
                                   .reduce_dtype = reduce_dtype,
                                   .compression = named_option(shard::kCompressions, "compression", compression)};
  return c10::make_intrusive<GradientReducer>(
      std::make_shared<shard::Reducer>(ranks->communicator, std::move(options)));
}

}  // namespace

void register_gradient_reducer(torch::Library& library) {
  library.class_<GradientReducer>("GradientReducer")
      .def("train", &GradientReducer::train)
      .def("ready", [](const ReducerPointer& self, int64_t index) { self->reducer->ready(static_cast<size_t>(index)); })
      .def("reduce", [](const ReducerPointer& self) { self->reducer->reduce(); })
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
  library.def(
      "gradient_reducer(__torch__.torch.classes.plimsoll.Ranks ranks, *, int bucket_elements, ScalarType reduce_dtype, "
      "str compression) -> __torch__.torch.classes.plimsoll.GradientReducer",
      &new_reducer);
}

}  // namespace plimsoll::bind
