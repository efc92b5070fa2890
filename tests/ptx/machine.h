// A launch of one kernel, thread by thread. Blocks run one after another in random order, warps of a block in turns of random
// length, and lanes of a warp that took different ways one group after another in random order.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/ptx/memory.h"
#include "tests/ptx/module.h"

namespace plimsoll::ptx {

struct Block;

struct Thread {
  enum class State : uint8_t { kRunning, kWaiting, kAtBarrier, kExited };
  std::vector<uint64_t> registers;
  std::vector<uint8_t> local;
  Block* block = nullptr;
  uint32_t number = 0;  // in its block
  int at = 0;           // instruction
  State state = State::kRunning;
  uint32_t mask = 0;  // of the lanes that it waits for
  Moment now;

  uint32_t lane() const { return number % 32; }
};

struct Block {
  Block(uint32_t block_number, uint32_t blocks, uint32_t thread_count, const Kernel& kernel);

  uint32_t number, of_blocks, block_threads;  // block_threads: a multiple of 32
  uint32_t threads_asked;
  std::vector<Thread> threads;
  Buffer shared;
  Memory* memory = nullptr;
  const std::vector<uint8_t>* parameters = nullptr;
};

// An instruction on one thread; on all lanes of a warp that take part, in order of their numbers.
using Action = std::function<void(Thread&)>;
using WarpAction = std::function<void(const std::vector<Thread*>&)>;

struct Step {
  enum class Kind : uint8_t { kThread, kWarp, kBarrier, kBranch, kExit };
  Kind kind = Kind::kThread;
  Action action = {};
  WarpAction warp_action = {};
  Action find_mask = {};  // of a warp action: sets thread.mask
};

// Fault: an instruction that is not known, by its name.
Step make_step(const Instruction& instruction);

struct LaunchShape {
  uint32_t blocks = 1, threads = 1;
};

class Machine {
 public:
  Machine(const Kernel& kernel, Memory& memory, uint32_t seed);

  // parameters: the bytes of the kernel's arguments. Fault: with kernel, line, block and thread.
  void run(LaunchShape shape, const std::vector<uint8_t>& parameters);
  int64_t steps() const { return steps_; }

 private:
  void run_block(Block& block);
  void run_warp(Block& block, uint32_t warp);
  bool step_warp(std::vector<Thread*>& lanes);
  void execute(const std::vector<Thread*>& group, std::vector<Thread*>& lanes);
  void wait_for_lanes(const std::vector<Thread*>& group, std::vector<Thread*>& lanes);
  bool release_barrier(Block& block);
  bool takes_part(const Thread& thread, const Instruction& instruction) const;
  [[noreturn]] void fail(const Thread& thread, const std::string& message) const;

  const Kernel& kernel_;
  Memory& memory_;
  std::vector<Step> program_;
  std::mt19937 random_;
  int64_t steps_ = 0;  // instructions of threads so far
};

}  // namespace plimsoll::ptx
