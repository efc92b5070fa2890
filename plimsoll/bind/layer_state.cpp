#include "plimsoll/bind/layer_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <mutex>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/amp/scale_tape.h"
#include "plimsoll/ops/torch_internals/attached.h"
#include "plimsoll/ops/torch_internals/backward_pass.h"

namespace plimsoll::bind {
namespace {

using recipe::Role;

constexpr Role kRoles[] = {Role::kInput, Role::kWeight, Role::kGradOutput};
static_assert(kStateTensors == 1 + 3 * std::size(kRoles));

// Attached to the key.
struct KeptState {
  std::shared_ptr<ops::LinearState> state = std::make_shared<ops::LinearState>();
  bool ran_in_scope = false;  // the last forward pass
};

KeptState& kept_of(const at::Tensor& key) {
  KeptState* const found = ops::find_attached<KeptState>(key);
  return found != nullptr ? *found : ops::attach(key, KeptState());
}

// torch.utils.checkpoint with use_reentrant=True runs a layer again in the backward pass, after the scope has ended,
// which would be in high precision, without a word.
void check_scope(KeptState& kept) {
  const bool in_scope = amp::current_recipe() != nullptr;
  if (ops::current_backward_pass() == ops::kNoBackwardPass) {
    kept.ran_in_scope = in_scope;
    return;
  }
  TORCH_CHECK(in_scope || !kept.ran_in_scope || !at::GradMode::is_enabled() || amp::replays_layers(),
              "checkpoint: expected a layer that runs again in a backward pass to find the autocast scope of its first "
              "run, got no scope; use plimsoll.pytorch.checkpoint, or torch.utils.checkpoint.checkpoint with "
              "use_reentrant=False");
}

void point_to(at::Tensor& buffer, const at::Tensor& now) {
  if (!buffer.is_same(now)) buffer = now;
}

}  // namespace

void name_product(const at::Tensor& key, std::string name) { kept_of(key).state->name = std::move(name); }

std::shared_ptr<ops::LinearState> layer_state(at::TensorList product) {
  TORCH_CHECK_VALUE(product.size() == kStateTensors, "state: expected ", kStateTensors,
                    " tensors (a key; scale, history and ", "step of input, weight and grad_output), got ",
                    product.size());
  static std::mutex mutex;  // two threads may bring the same new key
  const std::lock_guard<std::mutex> lock(mutex);
  KeptState& kept = kept_of(product[0]);
  check_scope(kept);
  std::shared_ptr<ops::LinearState> state = kept.state;
  size_t next = 1;
  for (const Role role : kRoles) {
    ops::OperandSlot& slot = state->slot(role);
    point_to(slot.scale, product[next++]);
    point_to(slot.amax_history, product[next++]);
    TORCH_CHECK_TYPE(product[next].scalar_type() == at::kLong && product[next].numel() == 1, ops::role_name(role),
                     "_step: expected one int64, got ", product[next].sizes(), " of ", product[next].scalar_type());
    point_to(slot.step, product[next++]);
  }
  return state;
}

}  // namespace plimsoll::bind
