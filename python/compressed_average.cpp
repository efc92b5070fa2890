// torch.classes.plimsoll.CompressedAverage: what plimsoll.shard's hook of DistributedDataParallel averages with.
#include "plimsoll/shard/average/compressed_average.h"

#include <ATen/ops/empty.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include "python/rank_group.h"

namespace plimsoll::python {
namespace {

struct Average : torch::CustomClassHolder {
  Average(const std::string& compression, const std::string& name, int64_t rank, int64_t size, int64_t elements)
      : averaging(shard::averaging_over(size)),
        average(shard::compression_of(compression), shard_group(name, size), checked(rank, size), averaging, elements) {
  }

  static int64_t checked(int64_t rank, int64_t size) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < size, "CompressedAverage: expected a rank from 0 to ", size - 1, ", got ",
                      rank);
    return rank;
  }

  shard::Averaging averaging;
  shard::CompressedAverage average;
};

using AveragePointer = c10::intrusive_ptr<Average>;

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.class_<Average>("CompressedAverage")
      .def(torch::init<const std::string&, const std::string&, int64_t, int64_t, int64_t>())
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

}  // namespace
}  // namespace plimsoll::python
