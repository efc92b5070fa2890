#include "plimsoll/shard/communicator/communicator.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "plimsoll/shard/communicator/ranks_testing.h"

namespace plimsoll::shard {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Time beyond a deadline, in which other processes may have the processors.
constexpr auto kSlack = 60s;
// The deadline of ranks of which one stands still. Another that lacks a processor for some seconds is not taken for it.
constexpr auto kPatience = 5s;

TEST(Communicator, OfOneProcessNeedsNobody) {
  const auto alone = Communicator::connect({});
  const at::Tensor x = at::arange(5, at::kFloat);
  alone->all_reduce_(x).wait();
  alone->broadcast_(x).wait();
  alone->barrier();
  EXPECT_TRUE(alone->all_gather(x).equal(at::arange(5, at::kFloat)));
  EXPECT_TRUE(alone->reduce_scatter(x).equal(x));
  EXPECT_EQ(alone->split("other")->size(), 1);
}

TEST(Communicator, WithoutAConnectionACollectiveIsAnErrorThatSaysSo) {
  const auto second = Communicator::unconnected(1, 2);
  EXPECT_EQ(second->rank(), 1);
  EXPECT_EQ(second->size(), 2);
  EXPECT_FALSE(second->is_connected());
  const std::string said = "all_reduce on rank 1 of 2 failed: its process group tells rank and size alone";
  EXPECT_THAT([&] { second->all_reduce_(at::ones({2})).wait(); },
              ::testing::ThrowsMessage<c10::DistBackendError>(HasSubstr(said)));
  EXPECT_THAT([&] { second->all_gather(at::ones({2})); }, ::testing::Throws<c10::DistBackendError>());
  EXPECT_THAT([] { Communicator::unconnected(2, 2); },
              ::testing::ThrowsMessage<c10::ValueError>(HasSubstr("got rank 2 of 2")));

  const auto alone = Communicator::unconnected(0, 1);
  EXPECT_TRUE(alone->is_connected() && alone->all_gather(at::ones({2})).equal(at::ones({2})));
}

TEST(Communicator, CollectivesOfThreeRanks) {
  testing::on_ranks(3, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    ASSERT_EQ(ranks->rank(), launch.rank);
    ASSERT_EQ(ranks->size(), 3);
    const at::Tensor mine = at::full({4, 2}, static_cast<double>(launch.rank + 1));
    const at::Tensor sum = mine.clone();
    ranks->all_reduce_(sum).wait();
    EXPECT_TRUE(sum.equal(at::full({4, 2}, 6.0)));
    const at::Tensor first = mine.clone();
    ranks->broadcast_(first, 1).wait();
    EXPECT_TRUE(first.equal(at::full({4, 2}, 2.0)));
    const at::Tensor all = ranks->all_gather(mine.to(at::kFloat8_e4m3fn));
    EXPECT_TRUE(all.to(at::kFloat).select(1, 0).equal(at::arange(1, 4).repeat_interleave(4).to(at::kFloat)));
    const at::Tensor part = ranks->reduce_scatter(at::arange(6, at::kFloat) * (launch.rank + 1));
    EXPECT_TRUE(part.equal(at::arange(2 * launch.rank, 2 * launch.rank + 2, at::kFloat) * 6));
    EXPECT_TRUE(ranks->all_reduce(at::ones({7}, at::kBFloat16)).equal(at::full({7}, 3, at::kBFloat16)));
    std::array<int32_t, 2> largest = {static_cast<int32_t>(launch.rank), static_cast<int32_t>(-launch.rank)};
    ranks->all_reduce_max(largest);
    EXPECT_THAT(largest, ::testing::ElementsAre(2, 0));
    ranks->barrier();
  });
}

// Two threads, each with its own order of collectives.
TEST(Communicator, SplitHasAnOrderOfItsOwn) {
  testing::on_ranks(2, [](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    const auto others = ranks->split("others");
    const at::Tensor a = at::ones({1000}), b = at::full({10}, 2.0);
    const auto reduce_a = [&] { ranks->all_reduce_(a).wait(); };
    const auto reduce_b = [&] { others->all_reduce_(b).wait(); };
    if (launch.rank == 0) {
      reduce_a();
      reduce_b();
    } else {
      std::thread first(reduce_b);
      reduce_a();
      first.join();
    }
    EXPECT_TRUE(a.equal(at::full({1000}, 2.0)));
    EXPECT_TRUE(b.equal(at::full({10}, 4.0)));
  });
}

// The error of a collective in which `gone` does not take part, and how long it takes until its rank has let go of all
// that it holds, and can say so.
void expect_error_naming(const Launch& launch, int64_t gone, int signal, std::chrono::milliseconds deadline) {
  auto ranks = testing::connect(launch, deadline);
  const at::Tensor x = at::ones({1 << 16});
  ranks->all_reduce_(x).wait();
  if (launch.rank == gone) raise(signal);
  const auto start = std::chrono::steady_clock::now();
  try {
    for (int step = 0; step < 2; ++step) ranks->all_reduce_(x).wait();  // the first may have had all it needs
    FAIL() << "expected an error";
  } catch (const c10::DistBackendError& error) {
    const std::string said = error.what_without_backtrace();
    EXPECT_THAT(said, HasSubstr("all_reduce on rank " + std::to_string(launch.rank) + " of 3 failed"));
    EXPECT_THAT(said, HasSubstr(std::to_string(gone))) << said;
    EXPECT_THAT(said, ::testing::ContainsRegex("ended or stand")) << said;
  }
  ranks.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, signal == SIGKILL ? kSlack : deadline + kSlack);
}

TEST(Communicator, AKilledRankIsNamedByAllOthers) {
  testing::on_ranks(3, [](const Launch& launch) { expect_error_naming(launch, 1, SIGKILL, 120s); }, {.killed = {1}});
}

// A byte into a pipe that nobody reads: the error of write.
int error_of_a_broken_pipe() {
  std::array<int, 2> ends = {};
  EXPECT_EQ(pipe(ends.data()), 0);
  close(ends[0]);
  errno = 0;
  EXPECT_EQ(write(ends[1], "x", 1), -1);
  const int error = errno;
  close(ends[1]);
  return error;
}

TEST(Communicator, ARankOutlivesABrokenPipeAndItsChildrenDoNot) {
  testing::on_ranks(2, [](const Launch& launch) {
    std::signal(SIGPIPE, SIG_DFL);
    const auto ranks = testing::connect(launch);
    EXPECT_EQ(error_of_a_broken_pipe(), EPIPE);
    EXPECT_EQ(std::system("sh -c 'kill -PIPE $$'"), (128 + SIGPIPE) << 8);
    ranks->barrier();
  });
}

int broken_pipes_of_the_host = 0;

TEST(Communicator, AHandlerOfTheHostForBrokenPipesStays) {
  testing::on_ranks(2, [](const Launch& launch) {
    std::signal(SIGPIPE, [](int) { ++broken_pipes_of_the_host; });
    const auto ranks = testing::connect(launch);
    EXPECT_EQ(error_of_a_broken_pipe(), EPIPE);
    EXPECT_EQ(broken_pipes_of_the_host, 1);
    ranks->barrier();
  });
}

TEST(Communicator, AStoppedRankIsNamedAfterTheDeadline) {
  testing::on_ranks(3, [](const Launch& launch) { expect_error_naming(launch, 2, SIGSTOP, kPatience); },
                    {.stopped = {2}});
}

// Rank 0 holds the store in which the others look.
TEST(Communicator, RankZeroKilledIsNamed) {
  testing::on_ranks(3, [](const Launch& launch) { expect_error_naming(launch, 0, SIGKILL, 120s); }, {.killed = {0}});
}

TEST(Communicator, RankZeroStoppedIsNamed) {
  testing::on_ranks(3, [](const Launch& launch) { expect_error_naming(launch, 0, SIGSTOP, kPatience); },
                    {.stopped = {0}});
}

// A rank that would wait for an answer in the store itself, in which no collective is under way.
TEST(Communicator, RankZeroStoppedBeforeASplitIsNamed) {
  testing::on_ranks(2,
                    [](const Launch& launch) {
                      auto ranks = testing::connect(launch, kPatience);
                      ranks->barrier();
                      if (launch.rank == 0) raise(SIGSTOP);
                      const auto start = std::chrono::steady_clock::now();
                      EXPECT_THROW(ranks->split("other"), c10::DistBackendError);
                      ranks.reset();
                      EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience + kSlack);
                    },
                    {.stopped = {0}});
}

// A port where somebody listens who never says a word.
class SilentPort {
 public:
  SilentPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_, generic, size) | getsockname(socket_, generic, &size) | listen(socket_, 8), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentPort() { close(socket_); }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;

  uint16_t port() const { return port_; }

 private:
  int socket_;
  uint16_t port_ = 0;
};

TEST(Communicator, APortThatAnswersNothingIsAnErrorAfterTheDeadline) {
  const SilentPort silent;
  const auto start = std::chrono::steady_clock::now();
  try {
    testing::connect({.rank = 1, .world_size = 2, .port = silent.port()}, 2s);
    FAIL() << "expected an error";
  } catch (const c10::DistBackendError& error) {
    const std::string said = error.what_without_backtrace();
    EXPECT_THAT(said, HasSubstr("connecting on rank 1 of 2 failed (deadline 2000 ms)"));
    EXPECT_THAT(said, HasSubstr("127.0.0.1:" + std::to_string(silent.port()) + ", where the ranks' store should be"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 2s + kSlack);
}

TEST(Communicator, RanksThatEndWellPrintNothingHoweverFarApart) {
  testing::on_ranks(3, [](const Launch& launch) {
    ::testing::internal::CaptureStderr();
    auto ranks = testing::connect(launch);
    auto other = ranks->split("other");
    ranks->barrier();
    std::this_thread::sleep_for(launch.rank * 700ms);
    other.reset();
    ranks.reset();
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  });
}

TEST(Communicator, ARankThatNeverStartsIsAnErrorAfterTheDeadline) {
  testing::on_ranks(2, [](const Launch& launch) {
    if (launch.rank == 1) return;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(testing::connect(launch, 2s), c10::DistBackendError);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 2s + kSlack);
  });
}

}  // namespace
}  // namespace plimsoll::shard
