// Gradients that torch's DistributedDataParallel hands over bucket by bucket, averaged while they travel compressed
// (average/compressed_average.h), and what compression has left out of them, by parameter: torch makes its buckets anew
// after the first pass.
#pragma once

#include <ATen/core/TensorBody.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/shard/average/averaging.h"
#include "plimsoll/shard/average/compressed_average.h"
#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::shard {

class HookedBuckets {
 public:
  // A parameter whose gradients come.
  struct Parameter {
    std::string name;
    int64_t elements;
  };
  HookedBuckets(Compression compression, std::shared_ptr<const Communicator> ranks, std::vector<Parameter> parameters);

  // One bucket: of index 0 and up in each pass.
  struct Given {
    int64_t index = 0;
    bool is_last = false;                 // of the pass
    std::vector<size_t> parameters = {};  // places among the constructor's
    std::vector<at::Tensor> gradients = {};
  };
  // A collective. The bucket's gradients begin to travel, and become averages later: the indices of the buckets for which
  // that is so by now, none of which a call before has named. All of the pass after its last bucket.
  std::vector<int64_t> start(const Given& given);

  // Bytes that this rank sent in the last pass.
  int64_t sent_bytes() const;

  // Values and sums of each parameter, whole. A collective. begin is 0.
  std::vector<CompressedAverage::LeftOut> left_out() const;
  // Takes over what a section of a checkpoint holds, as left_out.h has it.
  void restore(const io::CheckpointReader& checkpoint, const std::string& section);

 private:
  struct Bucket {
    std::vector<size_t> parameters;
    std::vector<int64_t> begins = {};  // of each gradient, a multiple of kCompressedBlock
    int64_t elements = 0;
    std::unique_ptr<CompressedAverage> average = nullptr;
    std::vector<at::Tensor> gradients = {};  // while they travel

    void start(const std::vector<at::Tensor>& given, double predivide);
    void finish();
  };

  void check(const Given& given) const;
  Bucket make_bucket(const Given& given);
  void advance();
  int64_t finish();

  Compression compression_;
  std::shared_ptr<const Communicator> ranks_;
  Averaging averaging_;
  std::vector<Parameter> parameters_;
  std::map<int64_t, Bucket> buckets_;
  std::vector<std::optional<CompressedAverage::LeftOut>> waiting_;  // of parameters that are in no bucket yet
  std::deque<int64_t> under_way_;                                   // indices of buckets that travel
  size_t advanced_ = 0;                                             // of these, whose sums travel
};

}  // namespace plimsoll::shard
