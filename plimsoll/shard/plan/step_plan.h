// Cost of a training step for each of many processes: memory, bytes to send, time. Counted, not run: sizes and one
// process's speed are given, collectives take latency and bandwidth, and units compute and travel at the same time
// where FullyShardedDataParallel and the others let them.
//
//   memory a rank, bytes      parameters  gradients  states  travelling
//   none                      4 P         4 P        8 P
//   ddp                       4 P         4 P        8 P     3 buckets
//   zero1                     4 P         4 P        8 P/W   3 buckets
//   zero2                     4 P         4 P/W      8 P/W   3 buckets
//   fsdp                      4 P/W       4 P/W      8 P/W   root and 2 units in the computation's format, gradients
//
// and activations, which go while gradients come. The peak is that of the moment with the most of all, which under fsdp
// may be the beginning, when the model is there as a whole: 4 P.
//
// Times of collectives: a ring's, (W - 1) messages of 1 / W each; twice that for a sum that all get. Beside the forward
// and backward pass there is what goes through memory once and more: AdamW and the norm that clips, of the states that
// the rank has (32 bytes a parameter), and gradients on their way into and out of what travels.
// Source: Rajbhandari et al., ZeRO, 2020; Thakur et al., Optimization of Collective Communication Operations in MPICH,
// 2005.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace plimsoll::shard {

enum class Sharing : uint8_t { kNone, kDdp, kZero1, kZero2, kFsdp };

// Parameters that travel together under fsdp.
struct PlannedUnit {
  int64_t parameters = 0;     // that train
  double gathered_bytes = 0;  // of them in the computation's format
  double share = 0;           // of the step's multiply-adds
  int64_t largest = 0;        // parameter; its gradient is there twice while it joins the others
  double kept_bytes = 0;      // copies of its weights that backward reads, except of gathered ones
  double frozen_bytes = 0;    // of parameters that do not train
};

struct Network {
  double bytes_per_second = 0;  // that a rank sends while it receives as many
  double seconds_per_message = 0;
  // Whether transfers take nothing of the cores that compute, so that both go on at once; false between processes of
  // one machine.
  bool is_beside_cores = true;
};

struct PlannedStep {
  std::vector<PlannedUnit> units;  // the outermost first; then those inside it, as they compute
  Sharing sharing = Sharing::kFsdp;
  int64_t world = 1;
  bool reshard_after_forward = true;
  double compute_seconds = 0;  // of a step's forward and backward pass on one process alone
  double memory_bytes_per_second = std::numeric_limits<double>::infinity();  // that a process reads and writes
  double activation_bytes = 0;                                               // kept for backward
  double master_bytes = 4, gradient_bytes = 4, state_bytes = 8;              // of a parameter that trains
  bool releases_gradients = false;  // a gradient goes when it is complete, except under fsdp
  double bucket_bytes = 25e6;       // of gradients that travel together, except under fsdp
  Network network;
};

// At the moment with the most of all.
struct PlannedMemory {
  double parameters = 0, gradients = 0, states = 0, travelling = 0, activations = 0;
  double total() const { return parameters + gradients + states + travelling + activations; }
};

// Sent by one rank in one step.
struct PlannedBytes {
  double parameters = 0, gradients = 0;
  double total() const { return parameters + gradients; }
};

struct StepPlan {
  PlannedMemory memory;
  PlannedBytes sent;
  double network_seconds = 0;  // that the network is busy
  double memory_seconds = 0;   // of the update, and of gradients on their way
  double step_seconds = 0;     // compute_seconds and memory_seconds, and what the network is waited for
};

// Read and written by an update of all parameters.
double update_bytes(const std::vector<PlannedUnit>& units);

StepPlan plan_step(const PlannedStep& step);

}  // namespace plimsoll::shard
