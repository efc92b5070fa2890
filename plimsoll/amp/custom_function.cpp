#include "plimsoll/amp/custom_function.h"

#include <vector>

namespace plimsoll::amp {
namespace {

using torch::autograd::AutogradContext;

constexpr const char* kKey = "plimsoll.amp.autocast";  // {device, enabled, dtype} of the forward pass

}  // namespace

// No gradient is recorded inside forward: a weight's cast that were kept from there would cut the weight off from its
// gradient in the rest of the outer scope. So none is.
CustomForward::CustomForward(AutogradContext& context, at::DeviceType device, std::optional<at::ScalarType> cast_inputs)
    : device_(device),
      casts_(cast_inputs && at::autocast::is_autocast_enabled(device)),
      dtype_(cast_inputs),
      scope_(device, {.enabled = at::autocast::is_autocast_enabled(device) && !cast_inputs, .cache_enabled = false}) {
  const auto dtype = at::autocast::get_autocast_dtype(device);
  context.saved_data[kKey] = std::vector<int64_t>{
      static_cast<int64_t>(device), at::autocast::is_autocast_enabled(device), static_cast<int64_t>(dtype)};
}

at::Tensor CustomForward::cast(const at::Tensor& input) const {
  return casts_ && at::autocast::is_eligible(input, device_) ? input.to(*dtype_) : input;
}

Autocast autocast_of_forward(AutogradContext& context) {
  const auto saved = context.saved_data.find(kKey);
  TORCH_CHECK(saved != context.saved_data.end(),
              "autocast_of_forward: expected a CustomForward in the forward pass of this function, got none");
  const std::vector<int64_t> state = saved->second.toIntVector();
  return Autocast(static_cast<at::DeviceType>(state[0]),
                  {.dtype = static_cast<at::ScalarType>(state[2]), .enabled = state[1] != 0});
}

}  // namespace plimsoll::amp
