#include "python/layer_state.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <mutex>

namespace plimsoll::python {
namespace {

using recipe::Role;

constexpr Role kRoles[] = {Role::kInput, Role::kWeight, Role::kGradOutput};
static_assert(kStateTensors == 1 + 3 * std::size(kRoles));

// Carried by the key.
struct KeptState : c10::BackendMeta {
  std::shared_ptr<ops::LinearState> state = std::make_shared<ops::LinearState>();
};

std::shared_ptr<ops::LinearState> find_state(const at::Tensor& key) {
  const auto* kept = dynamic_cast<const KeptState*>(key.unsafeGetTensorImpl()->get_backend_meta());
  return kept == nullptr ? nullptr : kept->state;
}

std::shared_ptr<ops::LinearState> state_of(const at::Tensor& key) {
  if (auto found = find_state(key)) return found;
  auto kept = c10::make_intrusive<KeptState>();
  std::shared_ptr<ops::LinearState> state = kept->state;
  key.unsafeGetTensorImpl()->set_backend_meta(std::move(kept));
  return state;
}

void point_to(at::Tensor& buffer, const at::Tensor& now) {
  if (!buffer.is_same(now)) buffer = now;
}

}  // namespace

std::shared_ptr<ops::LinearState> layer_state(at::TensorList product) {
  TORCH_CHECK_VALUE(product.size() == kStateTensors, "state: expected ", kStateTensors,
                    " tensors (a key; scale, history and ", "step of input, weight and grad_output), got ",
                    product.size());
  static std::mutex mutex;  // two threads may bring the same new key
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<ops::LinearState> state = state_of(product[0]);
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

std::shared_ptr<ops::LinearState> kept_state(const at::Tensor& key) {
  std::shared_ptr<ops::LinearState> state = find_state(key);
  TORCH_CHECK_VALUE(state != nullptr, "keys: expected the key of a layer that has run, got another tensor");
  return state;
}

}  // namespace plimsoll::python
