// Shares of ZeRO-1: which rank updates which parameter, and how the others get what it came to.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

#include "plimsoll/shard/communicator/communicator.h"

namespace plimsoll::shard {

class ParameterShares {
 public:
  explicit ParameterShares(std::shared_ptr<const Communicator> ranks);

  // The owners of parameters that join those that are there, which stay where they are (balanced_owners()). A parameter
  // without a gradient has no state and counts as one element. The same on all ranks.
  std::vector<int64_t> add(const std::vector<at::Tensor>& parameters);

  // Throws c10::ValueError for a parameter that was not added.
  int64_t owner_of(const at::Tensor& parameter) const;

  struct SendOptions {
    bool in_half = false;  // FP32 travels as FP16, to which the owner's parameters are rounded, too
  };
  // A collective: all ranks get each owner's parameters.
  void send(const SendOptions& options) const;

 private:
  // Parameters of one owner that travel together: one that is large by itself, where it is.
  struct Parcel {
    int64_t owner = 0;
    std::vector<at::Tensor> parameters;
    at::Tensor values;
    bool is_in_place = false;
  };
  std::vector<Parcel> parcels(const SendOptions& options) const;

  std::shared_ptr<const Communicator> ranks_;
  std::vector<int64_t> loads_;  // of the ranks, in elements
  std::vector<at::Tensor> parameters_;
  std::vector<int64_t> owners_;
};

}  // namespace plimsoll::shard
