#include "plimsoll/shard/checkpoint/checkpoint_saver.h"

#include <utility>

#include "plimsoll/io/checkpoint.h"
#include "plimsoll/shard/communicator/gather_texts.h"

namespace plimsoll::shard {
namespace {

void copy_values(const at::Tensor& from, at::Tensor& to) {
  const bool fits = to.defined() && to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes();
  if (fits) {
    to.copy_(from);
  } else {
    to = from.detach().clone(at::MemoryFormat::Contiguous);
  }
}

void copy_pieces(const std::vector<io::TensorPiece>& from, std::vector<io::TensorPiece>& to) {
  to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    at::Tensor memory = std::move(to[i].values);
    copy_values(from[i].values, memory);
    to[i] = from[i];
    to[i].values = std::move(memory);
  }
}

}  // namespace

CheckpointSaver::CheckpointSaver(SaverOptions options, std::shared_ptr<const ops::RankGroup> ranks, int64_t rank)
    : options_(std::move(options)), ranks_(std::move(ranks)), rank_(rank) {
  TORCH_CHECK_VALUE(options_.keep >= 1, "checkpoint: expected to keep 1 or more, got ", options_.keep);
}

CheckpointSaver::~CheckpointSaver() {
  if (writing_.valid()) writing_.wait();
}

void CheckpointSaver::save(const RankCheckpoint& checkpoint) {
  TORCH_CHECK_VALUE(checkpoint.step >= 0, "checkpoint: expected a step of 0 or more, got ", checkpoint.step);
  if (!options_.asynchronous) return write(checkpoint);
  wait();
  const at::NoGradGuard no_grad;
  copy_.step = checkpoint.step;
  copy_.state = checkpoint.state;
  std::erase_if(copy_.sections, [&](const auto& copied) { return !checkpoint.sections.contains(copied.first); });
  for (const auto& [section, pieces] : checkpoint.sections) copy_pieces(pieces, copy_.sections[section]);
  writing_ = std::async(std::launch::async, [this] { write(copy_); });
}

void CheckpointSaver::wait() {
  if (writing_.valid()) writing_.get();
}

void CheckpointSaver::write(const RankCheckpoint& checkpoint) {
  if (!is_locked_) {
    on_all(*ranks_, [&] {
      if (rank_ == 0) lock_.emplace(io::OutputLock::of_directory(options_.run));
      return "";
    });
    is_locked_ = true;
  }
  save_checkpoint(options_.run, checkpoint, *ranks_, rank_);
  on_all(*ranks_, [&] {
    if (rank_ == 0) {
      io::remove_old_checkpoints(options_.run, checkpoint.step, static_cast<size_t>(options_.keep));
    }
    return "";
  });
}

}  // namespace plimsoll::shard
