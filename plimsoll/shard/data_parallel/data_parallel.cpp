#include "plimsoll/shard/data_parallel/data_parallel.h"

#include <utility>

#include "plimsoll/shard/communicator/same_model.h"
#include "plimsoll/shard/data_parallel/reducer.h"

namespace plimsoll::shard {
namespace {

std::string values_name(const std::string& parameter, int64_t rank) {
  return parameter + ".values." + std::to_string(rank);
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
  TORCH_CHECK_VALUE(!owner_of || options.compression == Compression::kNone,
                    "DistributedDataParallel: expected no compression of gradients that one rank alone gets");
  expect_same_model(module, *ranks_);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> trained;
  ReducerOptions reduction{.bucket_cap_mb = options.bucket_cap_mb, .compression = options.compression};
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    ranks_->broadcast_(parameter.detach()).wait();
    if (!parameter.requires_grad()) {
      reduction.frozen.push_back(parameter);
      continue;
    }
    trained.push_back(parameter);
    names_.push_back(item.key());
    shapes_.push_back(parameter.sizes().vec());
    if (owner_of) reduction.owners.push_back(owner_of(parameter));
  }
  for (const at::Tensor& buffer : module.buffers()) ranks_->broadcast_(buffer.detach()).wait();
  // A group of its own: backward() sums while another thread may have collectives, too.
  reducer_ = std::make_shared<Reducer>(std::move(trained), ranks_->split("gradients"), reduction);
  reducer_->attach();
}

DistributedDataParallel::~DistributedDataParallel() { reducer_->detach(); }

int64_t DistributedDataParallel::sent_bytes() const { return reducer_->sent_bytes(); }

std::vector<io::TensorPiece> DistributedDataParallel::left_out() const {
  const std::vector<CompressedAverage::LeftOut> all = reducer_->left_out();
  std::vector<io::TensorPiece> pieces;
  for (size_t i = 0; i < all.size(); ++i) {
    const CompressedAverage::LeftOut& one = all[i];
    pieces.push_back({.name = values_name(names_[i], ranks_->rank()),
                      .shape = shapes_[i],
                      .begin = 0,
                      .end = one.values.numel(),
                      .values = one.values});
    pieces.push_back({.name = names_[i] + ".sums",
                      .shape = shapes_[i],
                      .begin = one.begin,
                      .end = one.begin + one.sums.numel(),
                      .values = one.sums});
  }
  return pieces;
}

void DistributedDataParallel::restore_left_out(const io::CheckpointReader& checkpoint, const std::string& section) {
  const at::NoGradGuard no_grad;
  const std::vector<CompressedAverage::LeftOut> all = reducer_->left_out();
  const int64_t saved_by = checkpoint.manifest().world_size;
  for (size_t i = 0; i < all.size(); ++i) {
    const CompressedAverage::LeftOut& one = all[i];
    if (!checkpoint.has(section, names_[i] + ".sums")) continue;
    const int64_t end = one.begin + one.sums.numel();
    if (end > one.begin) one.sums.copy_(checkpoint.read(section, names_[i] + ".sums", one.begin, end));
    if (saved_by == ranks_->size()) {
      one.values.copy_(checkpoint.read(section, values_name(names_[i], ranks_->rank())).view({-1}));
      continue;
    }
    one.values.zero_();
    for (int64_t rank = 0; end > one.begin && rank < saved_by; ++rank) {
      const at::Tensor theirs = checkpoint.read(section, values_name(names_[i], rank), one.begin, end);
      one.sums.add_(theirs / averaging_over(saved_by).postdivide);
    }
  }
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& parallel)
    : parallel_(parallel), before_(std::exchange(parallel.reducer_->sync, false)) {}
DistributedDataParallel::NoSync::~NoSync() { parallel_.reducer_->sync = before_; }

}  // namespace plimsoll::shard
