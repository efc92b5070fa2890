#include "plimsoll/amp/autocast.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "plimsoll/amp/precision_kernels.h"

namespace plimsoll::amp {

namespace autocast = at::autocast;

Snapshot::Snapshot() : cache_enabled_(autocast::is_autocast_cache_enabled()) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const at::DeviceType device = autocast::_AUTOCAST_SUPPORTED_DEVICES[i];
    devices_[i] = {autocast::is_autocast_enabled(device), autocast::get_autocast_dtype(device)};
  }
}

void Snapshot::install() const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    const at::DeviceType device = autocast::_AUTOCAST_SUPPORTED_DEVICES[i];
    autocast::set_autocast_enabled(device, devices_[i].enabled);
    autocast::set_autocast_dtype(device, devices_[i].dtype);
  }
  autocast::set_autocast_cache_enabled(cache_enabled_);
}

bool Snapshot::has_dtypes_of(const Snapshot& other) const {
  return std::ranges::equal(devices_, other.devices_, {}, &Device::dtype, &Device::dtype);
}

Autocast::Autocast(at::DeviceType device, const AutocastOptions& options) {
  TORCH_CHECK(autocast::is_autocast_available(device), "Autocast: expected a device with autocast, got ", device);
  const at::ScalarType outside = autocast::get_autocast_dtype(device), dtype = options.dtype.value_or(outside);
  TORCH_CHECK(!options.enabled || dtype == at::kHalf || dtype == at::kBFloat16,
              "Autocast: expected a dtype of fp16 or bf16, got ", dtype);
  changes_dtype_ = options.enabled && dtype != outside;
  if (changes_dtype_) autocast::clear_cache();
  autocast::set_autocast_enabled(device, options.enabled);
  autocast::set_autocast_dtype(device, dtype);
  if (options.cache_enabled) autocast::set_autocast_cache_enabled(*options.cache_enabled);
  if (options.enabled) set_precision_table_holds(true);
  autocast::increment_nesting();
}

Autocast::Autocast(const Snapshot& snapshot) : changes_dtype_(!snapshot.has_dtypes_of(outside_)) {
  if (changes_dtype_) autocast::clear_cache();
  snapshot.install();
  autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (autocast::decrement_nesting() == 0 || changes_dtype_) autocast::clear_cache();
  if (restores_) outside_.install();
}

void Autocast::ends_before(Autocast& inner) {
  inner.outside_ = outside_;
  inner.changes_dtype_ |= changes_dtype_;
  restores_ = false;
}

}  // namespace plimsoll::amp
