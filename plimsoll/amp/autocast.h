// torch.autocast in C++: inside a scope operators compute in the precision that suits them (precision_table.h).
//
//   {
//     amp::Autocast scope(at::kCPU, at::kHalf);
//     loss = loss_of(model->forward(x), target);
//   }
//   scaler.scale(loss).backward();  // each operator's gradient in the dtype of its forward pass
//
// Autocast is a matter of the thread. Another one has the same after
//   std::thread([snapshot = amp::Snapshot()] { amp::Autocast scope(snapshot); ... });
#pragma once

#include <ATen/autocast_mode.h>

#include <array>
#include <optional>

namespace plimsoll::amp {

struct AutocastOptions {
  std::optional<at::ScalarType> dtype = std::nullopt;  // fp16 or bf16; none: the device's, bf16 on the CPU
  bool enabled = true;                                 // false inside another scope: off there
  std::optional<bool> cache_enabled = std::nullopt;    // keep the casts of weights; none: as outside
};

// State of autocast on the thread that makes it, the precision table included.
class Snapshot {
 public:
  Snapshot();
  // Makes it so on the calling thread.
  void install() const;
  bool has_dtypes_of(const Snapshot& other) const;

 private:
  struct Device {
    bool enabled;
    at::ScalarType dtype;
  };
  std::array<Device, at::autocast::_AUTOCAST_SUPPORTED_DEVICES.size()> devices_;
  bool cache_enabled_;
};

// Thread-local; nests, and leaves the thread as it found it, by an exception too. Scopes of one thread end in reverse
// order. The casts of weights live as long as the outermost scope, or until the dtype changes.
class Autocast {
 public:
  // Throws c10::Error if the device has no autocast, or another dtype than fp16 and bf16 is asked for.
  explicit Autocast(at::DeviceType device, const AutocastOptions& options = {});
  Autocast(at::DeviceType device, at::ScalarType dtype) : Autocast(device, AutocastOptions{.dtype = dtype}) {}
  explicit Autocast(const Snapshot& snapshot);
  ~Autocast();
  // State that `inner`, made later on this thread, restores when it ends after this scope, as a coroutine's may.
  void ends_before(Autocast& inner);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  Snapshot outside_;
  bool changes_dtype_ = false;  // casts in one dtype are of no use in the other
  bool restores_ = true;
};

}  // namespace plimsoll::amp
