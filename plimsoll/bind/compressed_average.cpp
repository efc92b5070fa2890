// torch.classes.plimsoll.CompressedAverage: what plimsoll.shard's hook of DistributedDataParallel averages with.
#include "plimsoll/shard/average/compressed_average.h"

#include <ATen/ops/empty.h>
#include <torch/custom_class.h>

#include <string>
#include <tuple>

#include "plimsoll/bind/named_option.h"
#include "plimsoll/bind/rank_group.h"
#include "plimsoll/bind/shard_library.h"

namespace plimsoll::bind {
namespace {

struct Average : torch::CustomClassHolder {
  Average(const std::string& compression, const RanksPointer& ranks, int64_t elements)
      : averaging(shard::averaging_over(ranks->communicator->size())),
        average(named_option(shard::kCompressions, "compression", compression), ranks->communicator,
                ranks->communicator->rank(), averaging, elements) {}

  shard::Averaging averaging;
  shard::CompressedAverage average;
};

using AveragePointer = c10::intrusive_ptr<Average>;

}  // namespace

void register_compressed_average(torch::Library& library) {
  library.class_<Average>("CompressedAverage")
      .def(torch::init<const std::string&, const RanksPointer&, int64_t>())
      .def("start",
           [](const AveragePointer& self, const at::Tensor& values) {
             self->average.start(values / self->averaging.predivide, at::empty({0}, at::kByte));
           })
      .def("advance", [](const AveragePointer& self) { self->average.advance(); })
      .def("finish", [](const AveragePointer& self) { return self->average.finish().values; })
      .def("abandon", [](const AveragePointer& self) { self->average.abandon(); })
      .def("sent_bytes", [](const AveragePointer& self) { return self->average.sent_bytes(); })
      .def("left_out",
           [](const AveragePointer& self) {
             const shard::CompressedAverage::LeftOut left = self->average.left_out();
             return std::make_tuple(left.values, left.sums, left.begin);
           })
      .def("sums_left_out", [](const AveragePointer& self) { return self->average.sums_left_out(); });
}

}  // namespace plimsoll::bind
