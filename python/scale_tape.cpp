// torch.classes.plimsoll.ScaleTape: plimsoll.pytorch.checkpoint's.
#include "plimsoll/amp/scale_tape.h"

#include <torch/custom_class.h>
#include <torch/library.h>

namespace plimsoll::python {
namespace {

struct Tape : torch::CustomClassHolder {
  amp::ScaleTape tape;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.class_<Tape>("ScaleTape")
      .def(torch::init<>())
      .def("enter", [](const c10::intrusive_ptr<Tape>& self, bool replays) { self->tape.enter(replays); })
      .def("exit", [](const c10::intrusive_ptr<Tape>& self) { self->tape.exit(); });
}

}  // namespace plimsoll::python
