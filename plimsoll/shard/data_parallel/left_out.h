// Remainders of compressed gradients, as a section of a checkpoint: NAME.values.RANK, each rank's, and NAME.sums where
// the ranks' sums travel compressed, too.
#pragma once

#include <string>
#include <vector>

#include "plimsoll/io/checkpoint_reader.h"
#include "plimsoll/io/tensor_piece.h"
#include "plimsoll/shard/data_parallel/reducer.h"

namespace plimsoll::shard {

// names: of the reducer's parameters, in order. Shares memory with the reducer. Empty without compression.
std::vector<io::TensorPiece> left_out_pieces(const Reducer& reducer, const std::vector<std::string>& names);

// The same number of ranks goes on with the bits of those that saved; another one with what they had left out in sum.
// A section without a parameter: nothing is left out of its gradient.
void restore_left_out(const Reducer& reducer, const std::vector<std::string>& names,
                      const io::CheckpointReader& checkpoint, const std::string& section);
// One parameter's, whose section has it.
void restore_left_out(const CompressedAverage::LeftOut& left, const Communicator& ranks, const std::string& name,
                      const io::CheckpointReader& checkpoint, const std::string& section);

}  // namespace plimsoll::shard
