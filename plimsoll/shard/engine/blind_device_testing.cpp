#include "plimsoll/shard/engine/blind_device_testing.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace plimsoll::shard::testing {
namespace {

constexpr c10::DeviceIndex kDevices = 2;

std::atomic<int64_t> reads = 0, waits = 0, recorded = 0, ends = 0;
thread_local c10::DeviceIndex device_now = 0;
thread_local std::array<c10::StreamId, kDevices> streams_now = {};
thread_local int in_operator = 0;  // operators copy for themselves

// Blocks by their addresses.
class Memory {
 public:
  static Memory& of_all_devices() {
    static auto* const memory = new Memory;  // tensors may outlive static objects
    return *memory;
  }

  void* allocate(size_t bytes) {
    void* const address = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(address != MAP_FAILED, "blind device: no addresses left");
    auto behind = std::make_unique<std::byte[]>(bytes);
    std::memset(behind.get(), 0xff, bytes);  // NaN, for whoever reads what nobody wrote
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<const std::byte*>(address)] = {.size = bytes, .behind = std::move(behind)};
    allocated_ += static_cast<int64_t>(bytes);
    return address;
  }

  void free(void* address) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<const std::byte*>(address));
    allocated_ -= static_cast<int64_t>(found->second.size);
    munmap(address, std::max<size_t>(found->second.size, 1));
    blocks_.erase(found);
  }

  std::byte* behind(const void* pointer) {
    const auto* const address = static_cast<const std::byte*>(pointer);
    const std::lock_guard lock(mutex_);
    const auto after = blocks_.upper_bound(address);
    TORCH_CHECK(after != blocks_.begin(), "blind device: no memory there");
    const auto& [begin, block] = *std::prev(after);
    TORCH_CHECK(address <= begin + block.size, "blind device: no memory there, or it is freed");
    return block.behind.get() + (address - begin);
  }

  int64_t allocated() {
    const std::lock_guard lock(mutex_);
    return allocated_;
  }

 private:
  struct Block {
    size_t size = 0;
    std::unique_ptr<std::byte[]> behind;
  };
  std::mutex mutex_;
  std::map<const std::byte*, Block> blocks_;
  int64_t allocated_ = 0;
};

void free_block(void* address) { Memory::of_all_devices().free(address); }

// As CUDA's: on the current device.
struct BlindAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const address = bytes == 0 ? nullptr : Memory::of_all_devices().allocate(bytes);
    return {address, address, &free_block, c10::Device(kBlind, device_now)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(bytes_behind(to), bytes_behind(from), bytes);
  }
};

BlindAllocator& allocator() {
  static auto* const result = new BlindAllocator;
  return *result;
}

struct BlindGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kBlind; }
  c10::Device exchangeDevice(c10::Device to) const override { return {kBlind, std::exchange(device_now, to.index())}; }
  c10::Device getDevice() const override { return {kBlind, device_now}; }
  void setDevice(c10::Device to) const override { device_now = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { device_now = to.index(); }
  c10::Stream getStream(c10::Device of) const override {
    const auto index = of.has_index() ? of.index() : device_now;
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kBlind, index), streams_now[static_cast<size_t>(index)]);
  }
  c10::Stream getDefaultStream(c10::Device of) const override { return c10::Stream(c10::Stream::DEFAULT, of); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = getStream(to.device());
    streams_now[static_cast<size_t>(to.device_index())] = to.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  // All work is done when it is queued, so events are counted only.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    static int something = 0;
    *event = &something;
  }
  void block(void*, const c10::Stream&) const override { ++waits; }
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override { ++ends; }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override { ++recorded; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, BlindGuard)

struct BlindHooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return device_now; }
  void setCurrentDevice(c10::DeviceIndex to) const override { device_now = to; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override { return std::exchange(device_now, to); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override { return exchangeDevice(to); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
};

struct RegisterDevice {
  RegisterDevice() {
    at::RegisterPrivateUse1HooksInterface(new BlindHooks);
    c10::SetAllocator(kBlind, &allocator());
    c10::register_privateuse1_backend("blind");  // the accelerator, whose streams autograd follows
  }
};
const RegisterDevice register_device;

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(kBlind));
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(sizes, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(kBlind));
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys, c10::dtype_or_default(dtype));
}

// The tensor's memory as the CPU sees it.
at::Tensor seen(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const c10::Storage& storage = tensor.storage();
  TORCH_CHECK(tensor.numel() == 0 || storage.data() != nullptr, "blind device: a tensor without memory is used");
  TORCH_CHECK(storage.data() == nullptr || storage.data_ptr().device() == tensor.device(), "blind device: a tensor on ",
              tensor.device(), " has memory on ", storage.data_ptr().device());
  std::byte* const begin = storage.data() == nullptr ? nullptr : bytes_behind(storage.data());
  return at::from_blob(begin + static_cast<size_t>(tensor.storage_offset()) * tensor.element_size(), tensor.sizes(),
                       tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (to.is_cpu() && in_operator == 0) ++reads;
  const at::Tensor there = seen(to);
  there.copy_(seen(from));
  return to;
}

// Results of operators, which were made with their sizes.
at::Tensor copy_back(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "blind device: expected ", to.sizes(), ", got ", from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  ++reads;
  return seen(tensor).item();
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++in_operator;
  at::native::cpu_fallback(op, stack);
  --in_operator;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_back);
  library.impl("_local_scalar_dense", &local_scalar);
}

c10::Stream exchange_stream(c10::Stream to) { return c10::impl::VirtualGuardImpl(kBlind).exchangeStream(to); }

}  // namespace

std::byte* bytes_behind(const void* pointer) { return Memory::of_all_devices().behind(pointer); }

BlindCounts blind_counts() {
  return {.reads = reads,
          .bytes = Memory::of_all_devices().allocated(),
          .waits = waits,
          .recorded = recorded,
          .ends = ends};
}

OnStream::OnStream(c10::StreamId id) : before_(exchange_stream(c10::Stream(c10::Stream::UNSAFE, kBlindDevice, id))) {}
OnStream::~OnStream() { exchange_stream(before_); }

}  // namespace plimsoll::shard::testing
