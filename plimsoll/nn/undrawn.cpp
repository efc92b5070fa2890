#include "plimsoll/nn/undrawn.h"

namespace plimsoll::nn {
namespace {

thread_local bool undrawn = false;

}  // namespace

UndrawnParameters::UndrawnParameters() : outer_(undrawn) { undrawn = true; }
UndrawnParameters::~UndrawnParameters() { undrawn = outer_; }
bool UndrawnParameters::are_wanted() { return undrawn; }

}  // namespace plimsoll::nn
