// The same model on every rank, each with its own part of the batch: after backward() every rank has the gradients of
// the whole batch, averaged, with the same bits.
//
//   models::Gpt model(config);
//   shard::DistributedDataParallel parallel(*model, ranks);  // rank 0's parameters and buffers are everybody's
//   model->loss(tokens, targets).backward();                  // gradients travel while the rest of them is computed
//   optimizer.step();
//
// Gradients are summed in FP32, whatever the dtype of the parameters. A parameter that no rank used keeps its gradient
// as it was; one that only some used counts as zero on the others. An exception that ends backward() on all ranks
// leaves incomplete gradients, to be cleared, and the next pass is whole.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/io/tensor_piece.h"
#include "plimsoll/shard/average/compression.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::shard {

class Reducer;

struct DataParallelOptions {
  double bucket_cap_mb = 25;  // gradients that travel together, in FP32; the first to be ready travel in 1 MB
  // Format in which gradients travel; sums are made in FP32. The remainders of rounding a step's gradients are added to
  // the next step's (compressed_average.h, compressed_reduction.h), which takes 4 bytes a parameter on each rank.
  Compression compression = Compression::kNone;
};

class DistributedDataParallel {
 public:
  // A collective. Throws c10::Error, which names the ranks, where models differ in names, shapes or dtypes. The
  // module's parameters belong to this until it is destroyed; they are those that require a gradient now. Others that
  // do later on are an error of backward().
  DistributedDataParallel(torch::nn::Module& module, std::shared_ptr<const Communicator> ranks,
                          const DataParallelOptions& options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Inside, gradients add up on each rank by itself; the first backward() after it averages what has added up.
  class NoSync {
   public:
    explicit NoSync(DistributedDataParallel& parallel);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedDataParallel& parallel_;
    bool before_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // Bytes that this rank sends for the gradients of a step.
  int64_t sent_bytes() const;

  // Remainders of compression so far, as a section of a checkpoint, whose memory this shares: NAME.sums, and of each
  // rank NAME.values.RANK. Empty without compression.
  std::vector<io::TensorPiece> left_out() const;
  // The same number of ranks goes on with the bits of those that saved; another one with what they had left out in sum.
  // A section without it: nothing is left out.
  void restore_left_out(const io::CheckpointReader& checkpoint, const std::string& section);

 protected:
  // The rank that gets the gradient of a parameter.
  using OwnerOf = std::function<int64_t(const at::Tensor& parameter)>;
  DistributedDataParallel(torch::nn::Module& module, std::shared_ptr<const Communicator> ranks,
                          const DataParallelOptions& options, const OwnerOf& owner_of);

 private:
  std::shared_ptr<const Communicator> ranks_;
  std::vector<std::string> names_;  // of the parameters
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace plimsoll::shard
