#include "plimsoll/amp/scale_tape.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace plimsoll::amp {
namespace {

thread_local std::vector<ScaleTape*> tapes;

// For one call at the scales of now. Its gradients' slot is the layer's.
std::shared_ptr<ops::LinearState> pinned_state(ops::LinearState& state) {
  auto pinned = std::make_shared<ops::LinearState>(state.name);
  pinned->input = state.input.pinned();
  pinned->weight = state.weight.pinned();
  pinned->grad_output = state.grad_output;
  pinned->weight_source.hold(state.weight_source.held());
  pinned->weight_source.keep_microbatch_of(state.weight_source);
  return pinned;
}

}  // namespace

void ScaleTape::enter(bool replays) {
  if (!replays) calls_.clear();
  replays_ = replays;
  next_ = 0;
  tapes.push_back(this);
}

void ScaleTape::exit() {
  const auto found = std::ranges::find(tapes.rbegin(), tapes.rend(), this);
  if (found != tapes.rend()) tapes.erase(std::next(found).base());
  replays_ = false;
}

std::shared_ptr<ops::LinearState> ScaleTape::pass(std::shared_ptr<ops::LinearState> state) {
  if (!replays_) {
    calls_.push_back(pinned_state(*state));
    return state;
  }
  const bool expected = next_ < calls_.size() && calls_[next_]->grad_output.scale.is_same(state->grad_output.scale);
  TORCH_CHECK(expected,
              "checkpoint: expected the second run to call the same layers in the same order, got another at "
              "call ",
              next_, " of ", calls_.size());
  calls_[next_]->weight_source.give_as(state->weight_source);
  return calls_[next_++];
}

std::shared_ptr<ops::LinearState> taped(std::shared_ptr<ops::LinearState> state) {
  for (ScaleTape* tape : tapes) state = tape->pass(std::move(state));
  return state;
}

bool repeats_layers() { return !tapes.empty(); }

bool replays_layers() {
  return std::ranges::any_of(tapes, [](const ScaleTape* tape) { return tape->replays(); });
}

}  // namespace plimsoll::amp
