#include "plimsoll/ops/linear/no_kept_weights.h"

#include <utility>

namespace plimsoll::ops {
namespace {

thread_local bool in_force = false;

}  // namespace

NoKeptWeights::NoKeptWeights() : outer_(std::exchange(in_force, true)) {}
NoKeptWeights::~NoKeptWeights() { in_force = outer_; }
bool NoKeptWeights::is_in_force() { return in_force; }

}  // namespace plimsoll::ops
