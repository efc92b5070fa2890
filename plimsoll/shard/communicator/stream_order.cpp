#include "plimsoll/shard/communicator/stream_order.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace plimsoll::shard {

void use_on_current_stream(const at::Tensor& tensor) {
  if (tensor.device().is_cpu() || !tensor.has_storage()) return;
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  device.recordDataPtrOnStream(tensor.storage().data_ptr(), device.getStream(tensor.device()));
}

void StreamOrder::take_turn(const at::Tensor& tensor) {
  if (tensor.device().is_cpu()) return;
  const c10::Stream now = c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
  const auto before = std::exchange(last_, now);
  if (!before || *before == now) return;
  c10::Event so_far(tensor.device().type());
  so_far.record(*before);
  so_far.block(now);
  use_on_current_stream(tensor);
}

}  // namespace plimsoll::shard
