#include "tests/ptx/machine.h"

#include <algorithm>
#include <numeric>

namespace plimsoll::ptx {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 31;  // of threads in a launch: more is an endless loop
constexpr uint64_t kSharedAddress = uint64_t{1} << 40;

uint32_t bit(const Thread& thread) { return uint32_t{1} << thread.lane(); }

}  // namespace

Block::Block(uint32_t block_number, uint32_t blocks, uint32_t thread_count, const Kernel& kernel)
    : number(block_number),
      of_blocks(blocks),
      block_threads((thread_count + 31) / 32 * 32),
      threads_asked(thread_count),
      threads(thread_count),
      shared("shared memory", kSharedAddress, static_cast<size_t>(kernel.shared_bytes), true) {
  for (uint32_t i = 0; i < thread_count; ++i) {
    threads[i].registers.resize(static_cast<size_t>(kernel.registers));
    threads[i].local.resize(static_cast<size_t>(kernel.local_bytes));
    threads[i].block = this;
    threads[i].number = i;
    threads[i].now.thread = 1 + number * block_threads + i;
  }
}

Machine::Machine(const Kernel& kernel, Memory& memory, uint32_t seed)
    : kernel_(kernel), memory_(memory), random_(seed) {
  for (const Instruction& instruction : kernel.instructions) {
    try {
      program_.push_back(make_step(instruction));
    } catch (const Fault& fault) {
      throw Fault("kernel " + kernel.name + ", line " + std::to_string(instruction.line) + ": " + fault.what());
    }
  }
}

void Machine::run(LaunchShape shape, const std::vector<uint8_t>& parameters) {
  if (static_cast<int64_t>(parameters.size()) != kernel_.parameter_bytes) {
    throw Fault("kernel " + kernel_.name + ": expected " + std::to_string(kernel_.parameter_bytes) +
                " bytes of arguments, got " + std::to_string(parameters.size()));
  }
  std::vector<uint32_t> order(shape.blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random_);
  for (const uint32_t number : order) {
    Block block(number, shape.blocks, shape.threads, kernel_);
    block.memory = &memory_;
    block.parameters = &parameters;
    run_block(block);
  }
  memory_.synchronize();
}

void Machine::run_block(Block& block) {
  const uint32_t warps = block.block_threads / 32;
  std::vector<uint32_t> order(warps);
  std::iota(order.begin(), order.end(), 0u);
  for (;;) {
    std::shuffle(order.begin(), order.end(), random_);
    const int64_t before = steps_;
    for (const uint32_t warp : order) run_warp(block, warp);
    if (steps_ > kMostSteps) fail(block.threads[0], "runs on and on");
    if (steps_ != before) continue;
    const auto is_over = [](const Thread& thread) { return thread.state == Thread::State::kExited; };
    if (std::all_of(block.threads.begin(), block.threads.end(), is_over)) return;
    if (!release_barrier(block))
      fail(*std::find_if_not(block.threads.begin(), block.threads.end(), is_over), "waits for threads that never come");
  }
}

void Machine::run_warp(Block& block, uint32_t warp) {
  std::vector<Thread*> lanes;
  for (uint32_t i = warp * 32; i < std::min(warp * 32 + 32, block.threads_asked); ++i)
    lanes.push_back(&block.threads[i]);
  for (uint32_t left = 1 + random_() % 64; left > 0 && step_warp(lanes); --left) {
  }
}

// Runs one instruction on the lanes that stand before it. False if no lane can run.
bool Machine::step_warp(std::vector<Thread*>& lanes) {
  // Mostly the lanes that are behind, so that ways join again; now and then others.
  const bool any = random_() % 8 == 0;
  int at = -1;
  for (const Thread* lane : lanes) {
    if (lane->state != Thread::State::kRunning) continue;
    if (at < 0 || lane->at < at || (any && lane->at != at && random_() % 8 == 0)) at = lane->at;
  }
  if (at < 0) return false;
  std::vector<Thread*> group;
  for (Thread* lane : lanes) {
    if (lane->state == Thread::State::kRunning && lane->at == at) group.push_back(lane);
  }
  execute(group, lanes);
  return true;
}

bool Machine::takes_part(const Thread& thread, const Instruction& instruction) const {
  if (instruction.predicate < 0) return true;
  return (thread.registers[static_cast<size_t>(instruction.predicate)] != 0) != instruction.predicate_negated;
}

void Machine::execute(const std::vector<Thread*>& group, std::vector<Thread*>& lanes) {
  const auto number = static_cast<size_t>(group[0]->at);
  if (number >= program_.size()) fail(*group[0], "runs past the end");
  const Instruction& instruction = kernel_.instructions[number];
  const Step& step = program_[number];
  std::vector<Thread*> waiting;
  for (Thread* thread : group) {
    ++steps_;
    if (!takes_part(*thread, instruction)) {
      ++thread->at;
      continue;
    }
    try {
      switch (step.kind) {
        case Step::Kind::kThread:
          step.action(*thread);
          ++thread->at;
          break;
        case Step::Kind::kWarp:
          step.find_mask(*thread);
          thread->state = Thread::State::kWaiting;
          waiting.push_back(thread);
          break;
        case Step::Kind::kBarrier:
          thread->state = Thread::State::kAtBarrier;
          break;
        case Step::Kind::kBranch:
          thread->at = instruction.target;
          break;
        case Step::Kind::kExit:
          thread->state = Thread::State::kExited;
          break;
      }
    } catch (const Fault& fault) {
      fail(*thread, fault.what());
    }
  }
  if (!waiting.empty()) wait_for_lanes(waiting, lanes);
}

// Runs the instruction once all lanes of its mask stand at it.
void Machine::wait_for_lanes(const std::vector<Thread*>& group, std::vector<Thread*>& lanes) {
  for (const Thread* thread : group) {
    if (thread->state != Thread::State::kWaiting) continue;
    const uint32_t mask = thread->mask;
    if ((mask & bit(*thread)) == 0) fail(*thread, "is not in the mask of its own instruction");
    std::vector<Thread*> members;
    for (Thread* lane : lanes) {
      if ((mask & bit(*lane)) == 0 || lane->state == Thread::State::kExited) continue;
      if (lane->state == Thread::State::kWaiting && lane->at == thread->at) {
        if (lane->mask != mask) fail(*thread, "has another mask than lane " + std::to_string(lane->lane()));
        members.push_back(lane);
      }
    }
    if (static_cast<int>(members.size()) != __builtin_popcount(mask)) continue;
    try {
      program_[static_cast<size_t>(thread->at)].warp_action(members);
    } catch (const Fault& fault) {
      fail(*thread, fault.what());
    }
    for (Thread* member : members) {
      member->state = Thread::State::kRunning;
      ++member->at;
    }
  }
}

// True if all threads that have not ended stand at the same barrier; they may go on.
bool Machine::release_barrier(Block& block) {
  const Thread* first = nullptr;
  for (const Thread& thread : block.threads) {
    if (thread.state == Thread::State::kExited) continue;
    if (thread.state != Thread::State::kAtBarrier) return false;
    if (first == nullptr) first = &thread;
    if (thread.at != first->at) fail(thread, "stands at another barrier than thread " + std::to_string(first->number));
  }
  for (Thread& thread : block.threads) {
    if (thread.state != Thread::State::kAtBarrier) continue;
    thread.state = Thread::State::kRunning;
    ++thread.at;
    ++thread.now.block_time;
  }
  return first != nullptr;
}

void Machine::fail(const Thread& thread, const std::string& message) const {
  std::string where = "kernel " + kernel_.name;
  if (static_cast<size_t>(thread.at) < kernel_.instructions.size()) {
    const Instruction& instruction = kernel_.instructions[static_cast<size_t>(thread.at)];
    where += ", line " + std::to_string(instruction.line) + " (" + instruction.text +
             (instruction.source.empty() ? "" : ", " + instruction.source) + ")";
  }
  throw Fault(where + ", " + name_of_thread(thread.now.thread, thread.block->block_threads) + ": " + message);
}

}  // namespace plimsoll::ptx
