#include "plimsoll/shard/data_parallel/data_parallel.h"

#include <algorithm>
#include <utility>

#include "plimsoll/shard/communicator/same_model.h"
#include "plimsoll/shard/data_parallel/left_out.h"
#include "plimsoll/shard/data_parallel/reducer.h"

namespace plimsoll::shard {
namespace {

constexpr double kFirstBucketMb = 1;  // so that the first sum starts early

int64_t elements_of(double megabytes) { return static_cast<int64_t>(megabytes * 1024 * 1024 / sizeof(float)); }

ReducerOptions reduction_of(const DataParallelOptions& options, int64_t owners) {
  const double megabytes = options.bucket_cap_mb / static_cast<double>(owners);
  return {.buckets = {.elements = elements_of(megabytes), .first = elements_of(std::min(kFirstBucketMb, megabytes))},
          .compression = options.compression};
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, std::shared_ptr<const Communicator> ranks,
                                                 const DataParallelOptions& options)
    : DistributedDataParallel(module, std::move(ranks), options, nullptr) {}

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, std::shared_ptr<const Communicator> ranks,
                                                 const DataParallelOptions& options, const OwnerOf& owner_of)
    : ranks_(std::move(ranks)) {
  TORCH_CHECK_VALUE(options.bucket_cap_mb > 0, "DistributedDataParallel: expected bucket_cap_mb > 0, got ",
                    options.bucket_cap_mb);
  expect_same_model(module, *ranks_);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parameters;
  std::vector<int64_t> owners;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    // A weight that is held as codes has no values of its own.
    if (parameter.is_non_overlapping_and_dense()) ranks_->broadcast_(parameter.detach()).wait();
    parameters.push_back(parameter);
    names_.push_back(item.key());
    if (owner_of) owners.push_back(parameter.requires_grad() ? owner_of(parameter) : 0);
  }
  for (const at::Tensor& buffer : module.buffers()) ranks_->broadcast_(buffer.detach()).wait();
  // A group of its own: backward() sums while another thread may have collectives, too. Each owner has a bucket of its
  // own that fills.
  reducer_ =
      std::make_shared<Reducer>(ranks_->split("gradients"), reduction_of(options, owner_of ? ranks_->size() : 1));
  reducer_->train(std::move(parameters), std::move(owners));
  reducer_->attach();
}

DistributedDataParallel::~DistributedDataParallel() = default;

int64_t DistributedDataParallel::sent_bytes() const { return reducer_->sent_bytes(); }

std::vector<io::TensorPiece> DistributedDataParallel::left_out() const { return left_out_pieces(*reducer_, names_); }

void DistributedDataParallel::restore_left_out(const io::CheckpointReader& checkpoint, const std::string& section) {
  shard::restore_left_out(*reducer_, names_, checkpoint, section);
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& parallel)
    : parallel_(parallel), before_(std::exchange(parallel.reducer_->sync, false)) {}
DistributedDataParallel::NoSync::~NoSync() { parallel_.reducer_->sync = before_; }

}  // namespace plimsoll::shard
