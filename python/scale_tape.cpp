#include "python/scale_tape.h"

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>

#include "python/layer_state.h"

namespace plimsoll::python {
namespace {

thread_local std::vector<ScaleTape*> tapes;

}  // namespace

void ScaleTape::enter(bool replays) {
  if (!replays) calls_.clear();
  replays_ = replays;
  next_ = 0;
  tapes.push_back(this);
}

void ScaleTape::exit() {
  TORCH_CHECK(!tapes.empty() && tapes.back() == this, "ScaleTape: expected tapes to end in reverse order");
  tapes.pop_back();
  replays_ = false;
}

std::shared_ptr<ops::LinearState> ScaleTape::pass(std::shared_ptr<ops::LinearState> state) {
  if (!replays_) {
    const auto now = [](ops::OperandSlot& slot) { return at::full({1}, ops::current_scale(slot)); };
    auto copy = pinned_state(*state, now(state->input), now(state->weight));
    copy->weight_cache = state->weight_cache;
    calls_.push_back(std::move(copy));
    return state;
  }
  const bool expected = next_ < calls_.size() && calls_[next_]->grad_output.scale.is_same(state->grad_output.scale);
  TORCH_CHECK(expected,
              "checkpoint: expected the second run to call the same layers in the same order, got another at "
              "call ",
              next_, " of ", calls_.size());
  return calls_[next_++];
}

std::shared_ptr<ops::LinearState> taped(std::shared_ptr<ops::LinearState> state) {
  for (ScaleTape* tape : tapes) state = tape->pass(std::move(state));
  return state;
}

bool replays_layers() {
  return std::ranges::any_of(tapes, [](const ScaleTape* tape) { return tape->replays(); });
}

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.class_<ScaleTape>("ScaleTape")
      .def(torch::init<>())
      .def("enter", &ScaleTape::enter)
      .def("exit", &ScaleTape::exit);
}

}  // namespace plimsoll::python
