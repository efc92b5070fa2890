#include "plimsoll/shard/data_parallel/left_out.h"

#include <ATen/core/grad_mode.h>

namespace plimsoll::shard {
namespace {

std::string values_name(const std::string& parameter, int64_t rank) {
  return parameter + ".values." + std::to_string(rank);
}

std::string sums_name(const std::string& parameter) { return parameter + ".sums"; }

// The section of a checkpoint, and the ranks that go on with it.
struct Restoring {
  const Communicator& ranks;
  const io::CheckpointReader& checkpoint;
  const std::string& section;

  int64_t saved_by() const { return checkpoint.manifest().world_size; }

  // Fills `mine` with the saved values of this rank, or with zeros. True if as many ranks saved them, so that they are
  // its own.
  bool take_values(const std::string& name, at::Tensor mine) const {
    const bool same = saved_by() == ranks.size();
    if (same) {
      mine.copy_(checkpoint.read(section, values_name(name, ranks.rank())).view({-1}));
    } else {
      mine.zero_();
    }
    return same;
  }

  // Adds to elements [begin, end) of an average what all ranks' values had left out of it, times `factor`.
  void add_values(const std::string& name, at::Tensor to, int64_t begin, int64_t end, double factor) const {
    for (int64_t rank = 0; end > begin && rank < saved_by(); ++rank) {
      const at::Tensor theirs = checkpoint.read(section, values_name(name, rank), begin, end);
      to.add_(theirs / averaging_over(saved_by()).postdivide * factor);
    }
  }

  void restore_sums(const std::string& name, const CompressedAverage::LeftOut& left) const {
    const int64_t end = left.begin + left.sums.numel();
    const bool saved = checkpoint.has(section, sums_name(name));
    if (!saved) left.sums.zero_();
    if (saved && end > left.begin) left.sums.copy_(checkpoint.read(section, sums_name(name), left.begin, end));
    if (!take_values(name, left.values)) add_values(name, left.sums, left.begin, end, 1);
  }

  // The owner goes on with what was left out of sums, and of other ranks' values, as if it were its own values'.
  void restore_owned(const std::string& name, const at::Tensor& values, bool mine) const {
    const double factor = averaging_over(ranks.size()).postdivide;
    const bool same = take_values(name, values);
    if (!mine) return;
    if (!same) add_values(name, values, 0, values.numel(), factor);
    if (!checkpoint.has(section, sums_name(name))) return;
    at::Tensor own = values;
    own.add_(checkpoint.read(section, sums_name(name)).view({-1}) * factor);
  }
};

}  // namespace

std::vector<io::TensorPiece> left_out_pieces(const Reducer& reducer, const std::vector<std::string>& names) {
  std::vector<io::TensorPiece> pieces;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto left = reducer.left_out(i);
    if (!left) continue;
    const std::vector<int64_t> shape = reducer.parameter(i).sizes().vec();
    pieces.push_back({.name = values_name(names[i], reducer.ranks().rank()),
                      .shape = shape,
                      .begin = 0,
                      .end = left->values.numel(),
                      .values = left->values});
    if (reducer.has_owners()) continue;
    pieces.push_back({.name = sums_name(names[i]),
                      .shape = shape,
                      .begin = left->begin,
                      .end = left->begin + left->sums.numel(),
                      .values = left->sums});
  }
  return pieces;
}

void restore_left_out(const Reducer& reducer, const std::vector<std::string>& names,
                      const io::CheckpointReader& checkpoint, const std::string& section) {
  const at::NoGradGuard no_grad;
  const Restoring restoring{.ranks = reducer.ranks(), .checkpoint = checkpoint, .section = section};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto left = reducer.left_out(i);
    if (!left || !checkpoint.has(section, values_name(names[i], 0))) continue;
    if (reducer.has_owners()) {
      restoring.restore_owned(names[i], left->values, reducer.is_mine(i));
    } else {
      restoring.restore_sums(names[i], *left);
    }
  }
}

void restore_left_out(const CompressedAverage::LeftOut& left, const Communicator& ranks, const std::string& name,
                      const io::CheckpointReader& checkpoint, const std::string& section) {
  const at::NoGradGuard no_grad;
  Restoring{.ranks = ranks, .checkpoint = checkpoint, .section = section}.restore_sums(name, left);
}

}  // namespace plimsoll::shard
