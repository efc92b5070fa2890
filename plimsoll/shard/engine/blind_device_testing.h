// A device for tests, of torch's type PrivateUse1: two devices of it, whose memory the host cannot read. A pointer to it
// is an address without access, so that whoever reads or writes there ends the program. Operators run on the CPU, on
// copies. Only programs that link this file have the device, and they have it from their start.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>

namespace plimsoll::shard::testing {

inline constexpr at::DeviceType kBlind = at::DeviceType::PrivateUse1;
// The current one of a thread is number 0, so number 1 is found by those alone who ask for it.
inline const at::Device kBlindDevice(kBlind, 1);

// The bytes that a pointer of a device stands for. Throws c10::Error for memory that is freed.
std::byte* bytes_behind(const void* pointer);

// Events so far, of all threads.
struct BlindCounts {
  int64_t reads = 0;     // copies of tensors, or of an element, to the host; not those of operators
  int64_t bytes = 0;     // that are allocated now
  int64_t waits = 0;     // of a stream for another one
  int64_t recorded = 0;  // times that memory was recorded on a stream
  int64_t ends = 0;      // waits of the host for all streams of a device
};
BlindCounts blind_counts();

// The current stream of this thread, of kBlindDevice, while this exists.
class OnStream {
 public:
  explicit OnStream(c10::StreamId id);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  c10::Stream before_;
};

}  // namespace plimsoll::shard::testing
