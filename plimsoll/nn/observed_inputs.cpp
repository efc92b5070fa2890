#include "plimsoll/nn/observed_inputs.h"

#include <utility>

namespace plimsoll::nn {
namespace {

thread_local const ObservedInputs* in_force = nullptr;

}  // namespace

ObservedInputs::ObservedInputs(See see) : see_(std::move(see)), outer_(std::exchange(in_force, this)) {}
ObservedInputs::~ObservedInputs() { in_force = outer_; }
bool ObservedInputs::are_wanted() { return in_force != nullptr; }

void ObservedInputs::show(const std::string& product, const at::Tensor& x) {
  if (in_force != nullptr) in_force->see_(product, x);
}

}  // namespace plimsoll::nn
