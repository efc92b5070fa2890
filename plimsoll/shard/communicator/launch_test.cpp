#include "plimsoll/shard/communicator/launch.h"

#include <gmock/gmock.h>

#include <map>
#include <stdexcept>

namespace plimsoll::shard {
namespace {

Variables variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string error_of(std::map<std::string, std::string> values) {
  try {
    launch_from(variables(std::move(values)));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "none";
}

TEST(Launch, AProcessThatNobodyStartedIsAlone) {
  const Launch launch = launch_from(variables({}));
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world_size, 1);
}

TEST(Launch, OfTorchrun) {
  const Launch launch = launch_from(variables({{"RANK", "5"},
                                               {"WORLD_SIZE", "8"},
                                               {"LOCAL_RANK", "1"},
                                               {"MASTER_ADDR", "node7"},
                                               {"MASTER_PORT", "1234"},
                                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                               {"TORCHELASTIC_RESTART_COUNT", "3"}}));
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world_size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.address, "node7");
  EXPECT_EQ(launch.port, 1234);
  EXPECT_TRUE(launch.store_is_running);
  EXPECT_EQ(launch.restarts, 3);
}

TEST(Launch, OfMpirunAndSrunOnOneMachineNeedsNoAddress) {
  const Launch mpirun = launch_from(variables({{"OMPI_COMM_WORLD_RANK", "1"},
                                               {"OMPI_COMM_WORLD_SIZE", "4"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  EXPECT_EQ(mpirun.rank, 1);
  EXPECT_EQ(mpirun.address, "127.0.0.1");
  EXPECT_EQ(mpirun.port, 29500);
  EXPECT_FALSE(mpirun.store_is_running);
  const Launch srun = launch_from(
      variables({{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "3"}, {"SLURM_LOCALID", "2"}, {"SLURM_JOB_NUM_NODES", "1"}}));
  EXPECT_EQ(srun.rank, 2);
  EXPECT_EQ(srun.world_size, 3);
}

TEST(Launch, ErrorsNameTheVariable) {
  EXPECT_EQ(error_of({{"RANK", "1"}}), "WORLD_SIZE: expected an integer from 1 to 65536, got nothing");
  EXPECT_EQ(error_of({{"RANK", "1"}, {"WORLD_SIZE", "2147483647"}}),
            "WORLD_SIZE: expected an integer from 1 to 65536, got '2147483647'");
  EXPECT_EQ(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK: expected an integer from 0 to 1, got '2'");
  EXPECT_EQ(error_of({{"RANK", "1x"}, {"WORLD_SIZE", "2"}}), "RANK: expected an integer from 0 to 1, got '1x'");
  EXPECT_EQ(error_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), "MASTER_ADDR: expected the address of rank 0, got nothing");
  EXPECT_EQ(error_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "0"}}),
            "MASTER_PORT: expected an integer from 1 to 65535, got '0'");
  EXPECT_EQ(error_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_JOB_NUM_NODES", "2"}}),
            "MASTER_ADDR: expected the address of rank 0, got nothing");
}

}  // namespace
}  // namespace plimsoll::shard
