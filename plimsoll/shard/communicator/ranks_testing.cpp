#include "plimsoll/shard/communicator/ranks_testing.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace plimsoll::shard::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 300s;
constexpr const char* kIsRank = "PLIMSOLL_TEST_RANK";

// A port that nobody else is given meanwhile; a store listens at it because it sets SO_REUSEADDR, too.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    EXPECT_EQ(bind(socket_, generic, size) | getsockname(socket_, generic, &size), 0);
    port_ = std::to_string(ntohs(address.sin_port));
  }
  ~ReservedPort() { close(socket_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  const std::string& port() const { return port_; }

 private:
  int socket_;
  std::string port_;
};

// A file that says that a rank's program has started.
std::filesystem::path started_file(int64_t port, int64_t rank) {
  return std::filesystem::temp_directory_path() /
         ("plimsoll_started_" + std::to_string(port) + "_" + std::to_string(rank));
}

void wait_until_all_have_started(const Launch& launch) {
  std::ofstream(started_file(launch.port, launch.rank));
  for (int64_t rank = 0; rank < launch.world_size; ++rank) {
    while (!std::filesystem::exists(started_file(launch.port, rank))) std::this_thread::sleep_for(1ms);
  }
}

std::string full_name_of_this_test() {
  const ::testing::TestInfo* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test->test_suite_name()) + "." + test->name();
}

class Rank {
 public:
  Rank(int64_t rank, int64_t world_size, const std::string& port)
      : output_(std::filesystem::temp_directory_path() /
                ("plimsoll_rank_" + std::to_string(getpid()) + "_" + std::to_string(rank))) {
    std::vector<std::string> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
    for (const auto& [name, value] :
         std::initializer_list<std::pair<const char*, std::string>>{{kIsRank, "1"},
                                                                    {"RANK", std::to_string(rank)},
                                                                    {"WORLD_SIZE", std::to_string(world_size)},
                                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                                    {"MASTER_PORT", port},
                                                                    {"OMP_NUM_THREADS", "1"}}) {
      environment.push_back(std::string(name) + "=" + value);
    }
    std::string program = std::filesystem::read_symlink("/proc/self/exe"),
                filter = "--gtest_filter=" + full_name_of_this_test();
    char* arguments[] = {program.data(), filter.data(), nullptr};
    std::vector<char*> variables;
    for (std::string& variable : environment) variables.push_back(variable.data());
    variables.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    EXPECT_EQ(posix_spawn(&process_, program.c_str(), &actions, nullptr, arguments, variables.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Rank() {
    if (!ended()) kill();
    std::filesystem::remove(output_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  bool ended() {
    if (process_ > 0 && waitpid(process_, &status_, WNOHANG) == process_) process_ = 0;
    return process_ == 0;
  }
  void kill() {
    ::kill(process_, SIGKILL);
    waitpid(process_, &status_, 0);
    process_ = 0;
  }
  int status() const { return status_; }
  std::string output() const {
    std::ostringstream text;
    text << std::ifstream(output_).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path output_;
  pid_t process_ = 0;
  int status_ = 0;
};

}  // namespace

void on_ranks(int64_t world_size, const std::function<void(const Launch&)>& body, const Fates& fates) {
  if (std::getenv(kIsRank) != nullptr) {
    const Launch launch = launch_from_environment();
    wait_until_all_have_started(launch);
    return body(launch);
  }
  const ReservedPort reserved;
  const int64_t port = std::stoll(reserved.port());
  for (int64_t rank = 0; rank < world_size; ++rank) std::filesystem::remove(started_file(port, rank));
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<Rank>(rank, world_size, reserved.port()));
  }
  const auto limit = std::chrono::steady_clock::now() + kLimit;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    Rank& process = *ranks[static_cast<size_t>(rank)];
    if (fates.stopped.contains(rank)) continue;
    while (!process.ended() && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(5ms);
    if (!process.ended()) {
      process.kill();
      ADD_FAILURE() << "rank " << rank << " hung:\n" << process.output();
    } else if (fates.killed.contains(rank)) {
      EXPECT_TRUE(WIFSIGNALED(process.status())) << "rank " << rank << ":\n" << process.output();
    } else {
      EXPECT_EQ(process.status(), 0) << "rank " << rank << ":\n" << process.output();
    }
  }
  for (int64_t rank = 0; rank < world_size; ++rank) std::filesystem::remove(started_file(port, rank));
}

std::shared_ptr<Communicator> connect(const Launch& launch, std::chrono::milliseconds deadline) {
  return Communicator::connect(launch, {.deadline = deadline});
}

}  // namespace plimsoll::shard::testing
