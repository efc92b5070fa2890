// torch.classes.plimsoll.ScaleTape: plimsoll.pytorch.checkpoint's.
#include "plimsoll/amp/scale_tape.h"

#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/amp/precision_kernels.h"
#include "plimsoll/bind/recipe_text.h"
#include "plimsoll/bind/scopes.h"

namespace plimsoll::bind {
namespace {

struct Tape : torch::CustomClassHolder {
  amp::ScaleTape tape;
};

class FirstRun final : public Scope {
 public:
  explicit FirstRun(c10::intrusive_ptr<Tape> tape) : tape_(std::move(tape)) { tape_->tape.enter(/*replays=*/false); }
  ~FirstRun() override { tape_->tape.exit(); }

 private:
  c10::intrusive_ptr<Tape> tape_;
};

// Under the scopes of the first run, which may have ended; nothing is recorded.
class SecondRun final : public Scope {
 public:
  SecondRun(c10::intrusive_ptr<Tape> tape, bool table_holds, ops::SharedRecipe recipe)
      : tape_(std::move(tape)),
        table_(table_holds),
        scope_(std::make_unique<amp::Fp8Autocast>(amp::Fp8Scope{.recipe = std::move(recipe)})) {
    tape_->tape.enter(/*replays=*/true);
  }
  ~SecondRun() override {
    tape_->tape.exit();
    scope_->abandon();
  }
  bool is_fp8() const override { return true; }

 private:
  c10::intrusive_ptr<Tape> tape_;
  amp::PrecisionTableGuard table_;
  std::unique_ptr<amp::Fp8Autocast> scope_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.class_<Tape>("ScaleTape")
      .def(torch::init<>())
      .def("enter_first_run", [](const c10::intrusive_ptr<Tape>& self,
                                 int64_t owner) { enter_scope(owner, std::make_unique<FirstRun>(self)); })
      .def("enter_second_run", [](const c10::intrusive_ptr<Tape>& self, int64_t owner, bool table_holds,
                                  const std::optional<std::string>& recipe) {
        return enter_scope(owner,
                           std::make_unique<SecondRun>(self, table_holds, recipe ? recipe_of(*recipe) : nullptr));
      });
}

}  // namespace plimsoll::bind
