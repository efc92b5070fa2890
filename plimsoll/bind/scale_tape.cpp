// torch.classes.plimsoll.ScaleTape: plimsoll.amp.recompute's.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>

#include "plimsoll/amp/second_run.h"
#include "plimsoll/bind/scopes.h"

namespace plimsoll::bind {
namespace {

struct Tape : torch::CustomClassHolder {
  amp::RunState state;
};

class FirstRun final : public Scope {
 public:
  explicit FirstRun(const amp::RunState& state) : run_(state) {}

 private:
  amp::FirstRun run_;
};

// The scopes of the first run may have ended.
class SecondRun final : public Scope {
 public:
  explicit SecondRun(const amp::RunState& state) : run_(state) {}
  bool is_fp8() const override { return true; }

 private:
  amp::SecondRun run_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.class_<Tape>("ScaleTape")
      .def(torch::init<>())
      .def("enter_first_run", [](const c10::intrusive_ptr<Tape>& self,
                                 int64_t owner) { enter_scope(owner, std::make_unique<FirstRun>(self->state)); })
      .def("enter_second_run", [](const c10::intrusive_ptr<Tape>& self, int64_t owner) {
        return enter_scope(owner, std::make_unique<SecondRun>(self->state));
      });
}

}  // namespace plimsoll::bind
