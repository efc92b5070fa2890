// torch.classes.plimsoll.ScaleTape: plimsoll.pytorch.checkpoint's.
#include "plimsoll/amp/scale_tape.h"

#include <torch/custom_class.h>
#include <torch/library.h>

#include <vector>

namespace plimsoll::python {
namespace {

struct Tape : torch::CustomClassHolder {
  amp::ScaleTape tape;
};
using TapePointer = c10::intrusive_ptr<Tape>;

// Tapes that this thread has entered: C++ knows them by their addresses until they end.
thread_local std::vector<TapePointer> entered;

void enter(const TapePointer& tape, bool replays) {
  tape->tape.enter(replays);
  entered.push_back(tape);
}

void exit(const TapePointer& tape) {
  tape->tape.exit();
  entered.pop_back();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.class_<Tape>("ScaleTape").def(torch::init<>()).def("enter", &enter).def("exit", &exit);
}

}  // namespace plimsoll::python
