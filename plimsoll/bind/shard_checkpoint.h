// Checkpoints and ranges of tensors as the classes that plimsoll.shard uses pass them.
#pragma once

#include <torch/custom_class.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/io/tensor_piece.h"

namespace plimsoll::bind {

// torch.classes.plimsoll.Checkpoint: one that is open.
struct Checkpoint : torch::CustomClassHolder {
  explicit Checkpoint(io::CheckpointReader opened, std::vector<std::string> newer = {})
      : reader(std::move(opened)), refused(std::move(newer)) {}

  std::vector<std::tuple<std::string, std::string, std::string, std::vector<int64_t>>> tensors() const;

  io::CheckpointReader reader;
  std::vector<std::string> refused;
};

// The name, shape, begin, end and values of each.
std::vector<std::tuple<std::string, std::vector<int64_t>, int64_t, int64_t, at::Tensor>> pieces_of(
    std::vector<io::TensorPiece> pieces);

}  // namespace plimsoll::bind
