// Saves the checkpoints of a run one after another, at once or while training goes on.
#pragma once

#include <filesystem>
#include <future>
#include <memory>
#include <optional>

#include "plimsoll/io/output_lock.h"
#include "plimsoll/shard/checkpoint/checkpoint.h"

namespace plimsoll::shard {

struct SaverOptions {
  std::filesystem::path run;
  int64_t keep = 3;           // checkpoints of the last steps up to the one saved; 1 or more
  bool asynchronous = false;  // save() copies the tensors and returns; a thread writes them
};

class CheckpointSaver {
 public:
  // Throws c10::ValueError where `keep` is below 1.
  // ranks: with an order of collectives of its own (Communicator::split), because another thread may be the caller.
  CheckpointSaver(SaverOptions options, std::shared_ptr<const ops::RankGroup> ranks, int64_t rank);
  ~CheckpointSaver();  // what was asked is finished
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // A collective. Waits for the one before, and throws what that failed with. From the first one on no other process
  // can save to this run while this is alive.
  void save(const RankCheckpoint& checkpoint);
  // Returns when everything asked is on disk.
  void wait();

 private:
  void write(const RankCheckpoint& checkpoint);

  SaverOptions options_;
  std::shared_ptr<const ops::RankGroup> ranks_;
  int64_t rank_;
  RankCheckpoint copy_;  // its memory is used again by the next
  bool is_locked_ = false;
  std::optional<io::OutputLock> lock_;  // of rank 0, for all
  std::future<void> writing_;
};

}  // namespace plimsoll::shard
