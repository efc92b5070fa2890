// Rank of this process and number of processes, as the program that started it says.
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
//   mpirun     OMPI_COMM_WORLD_RANK, ..._SIZE, ..._LOCAL_RANK, ..._LOCAL_SIZE
//   srun       SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_JOB_NUM_NODES
// Under the last two MASTER_ADDR may be left out where all processes are on one machine, and MASTER_PORT is 29500
// unless given.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace plimsoll::shard {

struct Launch {
  int64_t rank = 0;
  int64_t world_size = 1;             // at most 65,536
  int64_t local_rank = 0;             // among the processes of this machine
  std::string address = "127.0.0.1";  // where rank 0 is
  uint16_t port = 29500;              // of the store through which ranks find each other
  bool store_is_running = false;      // started by torchrun's agent; otherwise rank 0 starts it
  int64_t restarts = 0;               // of all ranks by that agent, whose store stays
};

// The value of an environment variable; nothing if it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

// A process that none of the three has started is alone. Throws std::invalid_argument, which names the variable, what
// was expected and what it holds.
Launch launch_from(const Variables& variables);

Launch launch_from_environment();

}  // namespace plimsoll::shard
