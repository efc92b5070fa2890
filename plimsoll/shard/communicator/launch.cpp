#include "plimsoll/shard/communicator/launch.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <stdexcept>

namespace plimsoll::shard {
namespace {

struct Launcher {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* one_machine;     // says whether all processes are on one; nullptr: MASTER_ADDR has to be given
  const char* one_machine_if;  // a variable that it then equals, or a number
};
constexpr std::array<Launcher, 3> kLaunchers = {{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", nullptr, nullptr},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_NUM_NODES", "1"},
}};

// Each rank has a connection to each other one.
constexpr int64_t kMostRanks = 1 << 16;

[[noreturn]] void refuse(const std::string& name, const std::string& expected,
                         const std::optional<std::string>& found) {
  throw std::invalid_argument(name + ": expected " + expected + ", got " + (found ? "'" + *found + "'" : "nothing"));
}

int64_t number(const Variables& variables, const std::string& name, int64_t from, int64_t to) {
  const std::optional<std::string> text = variables(name);
  int64_t value = 0;
  const char* const end = text ? text->data() + text->size() : nullptr;
  if (!text || std::from_chars(text->data(), end, value).ptr != end || text->empty() || value < from || value > to) {
    refuse(name, "an integer from " + std::to_string(from) + " to " + std::to_string(to), text);
  }
  return value;
}

bool on_one_machine(const Variables& variables, const Launcher& launcher) {
  if (launcher.one_machine == nullptr) return false;
  const std::optional<std::string> held = variables(launcher.one_machine), other = variables(launcher.one_machine_if);
  return held && *held == other.value_or(launcher.one_machine_if);
}

}  // namespace

Launch launch_from(const Variables& variables) {
  for (const Launcher& launcher : kLaunchers) {
    if (!variables(launcher.rank)) continue;
    Launch launch;
    launch.world_size = number(variables, launcher.world_size, 1, kMostRanks);
    launch.rank = number(variables, launcher.rank, 0, launch.world_size - 1);
    if (variables(launcher.local_rank)) {
      launch.local_rank = number(variables, launcher.local_rank, 0, launch.world_size - 1);
    }
    if (launch.world_size == 1) return launch;
    if (const std::optional<std::string> address = variables("MASTER_ADDR")) {
      launch.address = *address;
    } else if (!on_one_machine(variables, launcher)) {
      refuse("MASTER_ADDR", "the address of rank 0", std::nullopt);
    }
    if (variables("MASTER_PORT")) launch.port = static_cast<uint16_t>(number(variables, "MASTER_PORT", 1, 65535));
    launch.store_is_running = variables("TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (const char* const restarts = "TORCHELASTIC_RESTART_COUNT"; variables(restarts)) {
      launch.restarts = number(variables, restarts, 0, std::numeric_limits<int64_t>::max());
    }
    return launch;
  }
  return {};
}

Launch launch_from_environment() {
  return launch_from([](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace plimsoll::shard
