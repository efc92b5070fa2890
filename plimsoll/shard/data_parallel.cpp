#include "plimsoll/shard/data_parallel.h"

#include <utility>

#include "plimsoll/shard/reducer.h"
#include "plimsoll/shard/same_model.h"

namespace plimsoll::shard {

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, std::shared_ptr<const Communicator> ranks,
                                                 const DataParallelOptions& options)
    : DistributedDataParallel(module, std::move(ranks), options, nullptr) {}

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, std::shared_ptr<const Communicator> ranks,
                                                 const DataParallelOptions& options, const OwnerOf& owner_of) {
  TORCH_CHECK_VALUE(options.bucket_cap_mb > 0, "DistributedDataParallel: expected bucket_cap_mb > 0, got ",
                    options.bucket_cap_mb);
  TORCH_CHECK_VALUE(!owner_of || options.compression == Compression::kNone,
                    "DistributedDataParallel: expected no compression of gradients that one rank alone gets");
  expect_same_model(module, *ranks);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> trained;
  ReducerOptions reduction{.bucket_cap_mb = options.bucket_cap_mb, .compression = options.compression};
  for (const at::Tensor& parameter : module.parameters()) {
    ranks->broadcast_(parameter.detach()).wait();
    if (!parameter.requires_grad()) continue;
    trained.push_back(parameter);
    if (owner_of) reduction.owners.push_back(owner_of(parameter));
  }
  for (const at::Tensor& buffer : module.buffers()) ranks->broadcast_(buffer.detach()).wait();
  // Of its own: backward() sums while another thread may have collectives, too.
  reducer_ = std::make_shared<Reducer>(std::move(trained), ranks->split("gradients"), reduction);
  reducer_->attach();
}

DistributedDataParallel::~DistributedDataParallel() { reducer_->detach(); }

int64_t DistributedDataParallel::sent_bytes() const { return reducer_->sent_bytes(); }

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& parallel)
    : parallel_(parallel), before_(std::exchange(parallel.reducer_->sync, false)) {}
DistributedDataParallel::NoSync::~NoSync() { parallel_.reducer_->sync = before_; }

}  // namespace plimsoll::shard
