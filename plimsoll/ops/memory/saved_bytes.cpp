#include "plimsoll/ops/memory/saved_bytes.h"

#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "plimsoll/ops/torch_internals/saving.h"

namespace plimsoll::ops {

namespace autograd = torch::autograd;

// A storage's address stands for it: the graph keeps it alive while it is counted.
struct SavedBytesCounter::Ledger {
  std::mutex mutex;
  std::unordered_set<const void*> excluded;
  struct Saved {
    int64_t times = 0, bytes = 0;
  };
  std::unordered_map<const void*, Saved> saved;
  int64_t bytes = 0;

  void exclude(const at::Tensor& tensor) { excluded.insert(tensor.storage().unsafeGetStorageImpl()); }

  // The storage's address, by which it is removed; nullptr where it does not count.
  const void* add(const at::Tensor& tensor) {
    if (!counts(tensor)) return nullptr;
    const std::lock_guard lock(mutex);
    const void* const address = tensor.storage().unsafeGetStorageImpl();
    Saved& storage = saved[address];
    if (storage.times++ > 0) return address;
    storage.bytes = static_cast<int64_t>(tensor.storage().nbytes());
    bytes += storage.bytes;
    return address;
  }

  void remove(const void* address) {
    if (address == nullptr) return;
    const std::lock_guard lock(mutex);
    const auto found = saved.find(address);
    if (--found->second.times > 0) return;
    bytes -= found->second.bytes;
    saved.erase(found);
  }

 private:
  bool counts(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.has_storage() && !excluded.contains(tensor.storage().unsafeGetStorageImpl());
  }
};

class SavedBytesCounter::Hooks final : public autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<Ledger> ledger) : ledger_(std::move(ledger)) {}
  ~Hooks() override { ledger_->remove(address_); }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;
  // Detached: an output's history holds these hooks, and would hold itself.
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    address_ = ledger_->add(tensor);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  std::shared_ptr<Ledger> ledger_;
  at::Tensor tensor_;
  const void* address_ = nullptr;  // the tensor may have another storage when it is given up
};

SavedBytesCounter::SavedBytesCounter(const std::vector<at::Tensor>& excluded) : ledger_(std::make_shared<Ledger>()) {
  for (const at::Tensor& tensor : excluded) ledger_->exclude(tensor);
  set_saving_hooks([ledger = ledger_] { return std::make_unique<Hooks>(ledger); });
}

SavedBytesCounter::~SavedBytesCounter() { set_saving_hooks(nullptr); }

int64_t SavedBytesCounter::bytes() const {
  const std::lock_guard lock(ledger_->mutex);
  return ledger_->bytes;
}

}  // namespace plimsoll::ops
