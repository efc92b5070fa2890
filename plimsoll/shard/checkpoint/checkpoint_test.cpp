#include "plimsoll/shard/checkpoint/checkpoint.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "plimsoll/io/checkpoint.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"
#include "plimsoll/shard/checkpoint/checkpoint_saver.h"
#include "plimsoll/shard/communicator/ranks_testing.h"

namespace plimsoll::shard {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// One directory for the test and the ranks that it starts.
class SharedDirectory {
 public:
  SharedDirectory() {
    if (const char* const shared = std::getenv(kVariable)) {
      path_ = shared;
    } else {
      own_.emplace();
      path_ = own_->path();
      setenv(kVariable, path_.c_str(), 1);
    }
  }
  ~SharedDirectory() {
    if (own_) unsetenv(kVariable);
  }
  const fs::path& path() const { return path_; }
  bool in_rank() const { return !own_; }

 private:
  static constexpr const char* kVariable = "PLIMSOLL_TEST_DIRECTORY";
  std::optional<io::TemporaryDirectory> own_;
  fs::path path_;
};

constexpr int64_t kElements = 1'000'003;

// Part of a tensor that this rank has; the values tell the step.
RankCheckpoint checkpoint_of(int64_t step, const ops::RankGroup& ranks, int64_t rank, int64_t elements = kElements) {
  const int64_t part = (elements + ranks.size() - 1) / ranks.size();
  const int64_t begin = std::min(elements, rank * part), end = std::min(elements, begin + part);
  return {.step = step,
          .sections = {{"model",
                        {{.name = "weight",
                          .shape = {elements},
                          .begin = begin,
                          .end = end,
                          .values = at::arange(begin + step, end + step, at::kInt)}}}},
          .state = {{"rank", rank}}};
}

void expect_step(const io::CheckpointReader& reader, int64_t step) {
  EXPECT_EQ(reader.step(), step);
  EXPECT_EQ(reader.state().at("rank"), 0);
  const int64_t count = reader.manifest().sections.at("model").at("weight").shape.at(0);
  EXPECT_TRUE(reader.read("model", "weight").equal(at::arange(step, step + count, at::kInt)));
}

// Expects that a new process finds the checkpoint of this step.
void expect_latest(const fs::path& run, int64_t step) {
  const auto latest = open_latest_checkpoint(run, *Communicator::connect({}), 0);
  ASSERT_TRUE(latest);
  expect_step(latest->reader, step);
}

TEST(ShardCheckpoint, WhatThreeRanksSaveAnyNumberReads) {
  const SharedDirectory run;
  testing::on_ranks(3, [&](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    EXPECT_FALSE(open_latest_checkpoint(run.path(), *ranks, launch.rank));
    save_checkpoint(run.path(), checkpoint_of(1, *ranks, launch.rank), *ranks, launch.rank);
    const auto latest = open_latest_checkpoint(run.path(), *ranks, launch.rank);
    ASSERT_TRUE(latest);
    expect_step(latest->reader, 1);
    const int64_t begin = launch.rank * 300'000, end = begin + 100'001;
    EXPECT_TRUE(latest->reader.read("model", "weight", begin, end).equal(at::arange(begin + 1, end + 1, at::kInt)));
  });
  if (!run.in_rank()) expect_latest(run.path(), 1);
}

TEST(ShardCheckpoint, DamageOfOneRanksFileIsNamedByAllAndThePreviousStepUsed) {
  const SharedDirectory run;
  testing::on_ranks(2, [&](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    for (const int64_t step : {1, 2}) {
      save_checkpoint(run.path(), checkpoint_of(step, *ranks, launch.rank), *ranks, launch.rank);
    }
    const std::string file = "step-00000002/model.rank-00001.safetensors";
    if (launch.rank == 0) fs::resize_file(run.path() / file, 1000);
    ranks->barrier();
    const auto latest = open_latest_checkpoint(run.path(), *ranks, launch.rank);
    ASSERT_TRUE(latest);
    expect_step(latest->reader, 1);
    EXPECT_THAT(latest->refused, Contains(HasSubstr(file)));
    ranks->barrier();
    const std::string older = "step-00000001/model.rank-00000.safetensors";
    if (launch.rank == 0) fs::resize_file(run.path() / older, 1000);
    ranks->barrier();
    EXPECT_THAT([&] { open_latest_checkpoint(run.path(), *ranks, launch.rank); },
                ThrowsMessage<io::Error>(AllOf(HasSubstr(older), HasSubstr(file))));
  });
}

TEST(ShardCheckpoint, AFullDiskOfOneRankIsAnErrorOfAllAndTheNextSaveWorks) {
  const SharedDirectory run;
  testing::on_ranks(2, [&](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    const auto save = [&](int64_t step) {
      save_checkpoint(run.path(), checkpoint_of(step, *ranks, launch.rank), *ranks, launch.rank);
    };
    save(1);
    rlimit old{};
    ::getrlimit(RLIMIT_FSIZE, &old);
    const rlimit full{10'000, old.rlim_max};
    std::signal(SIGXFSZ, SIG_IGN);
    if (launch.rank == 1) ::setrlimit(RLIMIT_FSIZE, &full);
    EXPECT_THAT([&] { save(2); }, ThrowsMessage<io::Error>(HasSubstr("rank-00001.safetensors: cannot write")));
    ::setrlimit(RLIMIT_FSIZE, &old);
    ranks->barrier();
    EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 1);
    ranks->barrier();
    save(3);
  });
  if (!run.in_rank()) expect_latest(run.path(), 3);
}

// Calls something before each all_gather.
class InterruptedGroup : public ops::RankGroup {
 public:
  InterruptedGroup(const ops::RankGroup& ranks, std::function<void()> before)
      : ranks_(ranks), before_(std::move(before)) {}
  int64_t size() const override { return ranks_.size(); }
  at::Tensor all_gather(const at::Tensor& x) const override {
    before_();
    return ranks_.all_gather(x);
  }
  at::Tensor reduce_scatter(const at::Tensor& x) const override { return ranks_.reduce_scatter(x); }
  at::Tensor all_reduce(const at::Tensor& x) const override { return ranks_.all_reduce(x); }
  void all_reduce_max(std::span<int32_t> values) const override { ranks_.all_reduce_max(values); }

 private:
  const ops::RankGroup& ranks_;
  const std::function<void()> before_;
};

struct Death {
  const char* name;
  int64_t rank;
  int64_t all_gather;   // before which; a save has six
  int64_t latest;       // the step that is found afterwards
  bool writes = false;  // while the file is being written that is whole by then
};

// Whether a file of this beginning has bytes.
bool is_being_written(const fs::path& directory, const std::string& beginning) {
  std::error_code absent;
  for (fs::directory_iterator entry(directory, absent), end; !absent && entry != end; entry.increment(absent)) {
    if (!entry->path().filename().native().starts_with(beginning)) continue;
    const uintmax_t bytes = entry->file_size(absent);
    if (!absent && bytes > 0) return true;
  }
  return false;
}

class KilledWhileSaving : public ::testing::TestWithParam<Death> {};

TEST_P(KilledWhileSaving, LeavesAGoodCheckpointAndAnErrorOnTheOther) {
  const Death death = GetParam();
  const SharedDirectory run;
  testing::on_ranks(
      2,
      [&](const Launch& launch) {
        const auto ranks = testing::connect(launch);
        save_checkpoint(run.path(), checkpoint_of(1, *ranks, launch.rank), *ranks, launch.rank);
        const bool dies = launch.rank == death.rank;
        if (dies && death.writes) {
          std::thread([directory = run.path() / "step-00000002.partial"] {
            while (!is_being_written(directory, "model.rank-00001.safetensors")) std::this_thread::yield();
            raise(SIGKILL);
          }).detach();
        }
        const InterruptedGroup dying(*ranks, [left = dies ? death.all_gather : 0, &death]() mutable {
          if (--left != 0) return;
          while (death.writes) ::pause();  // until the thread ends it
          raise(SIGKILL);
        });
        EXPECT_THROW(save_checkpoint(run.path(), checkpoint_of(2, *ranks, launch.rank, 40'000'001), dying, launch.rank),
                     c10::DistBackendError);
      },
      {.killed = {death.rank}});
  if (run.in_rank()) return;
  expect_latest(run.path(), death.latest);
  const auto alone = Communicator::connect({});
  save_checkpoint(run.path(), checkpoint_of(2, *alone, 0), *alone, 0);
  expect_latest(run.path(), 2);
  io::remove_old_checkpoints(run.path(), 2, 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 2);
}

INSTANTIATE_TEST_SUITE_P(Phases, KilledWhileSaving,
                         ::testing::Values(Death{"RankZeroAsItBegins", 0, 1, 1},
                                           Death{"RankOneWhileItWrites", 1, 3, 1, true},
                                           Death{"RankOneWhenItHasWritten", 1, 3, 1},
                                           Death{"RankZeroWhenItHasWritten", 0, 4, 1},
                                           Death{"RankZeroWhenItHasCommitted", 0, 5, 2}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(CheckpointSaver, SavesWhatWasThereThoughTrainingGoesOn) {
  const SharedDirectory run;
  testing::on_ranks(2, [&](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    CheckpointSaver saver({.run = run.path(), .keep = 2, .asynchronous = true}, ranks->split("saver"), launch.rank);
    for (const int64_t step : {1, 2, 3}) {
      const RankCheckpoint checkpoint = checkpoint_of(step, *ranks, launch.rank);
      saver.save(checkpoint);
      checkpoint.sections.at("model")[0].values.fill_(-1);
      ranks->barrier();  // of this thread, beside the saver's
    }
    saver.wait();
  });
  if (run.in_rank()) return;
  EXPECT_EQ(io::list_checkpoints(run.path()).size(), 2u);
  expect_latest(run.path(), 3);
}

TEST(CheckpointSaver, AFailureInTheBackgroundComesOutAtTheNextCall) {
  const io::TemporaryDirectory files;
  io::write_plainly(files / "run", "a file where the directory should be");
  const std::shared_ptr<const Communicator> alone = Communicator::connect({});
  CheckpointSaver saver({.run = files / "run", .asynchronous = true}, alone, 0);
  saver.save(checkpoint_of(1, *alone, 0));
  EXPECT_THROW(saver.wait(), io::Error);
  saver.wait();
}

TEST(CheckpointSaver, ASectionOfTheStepBeforeIsNotInTheNext) {
  const io::TemporaryDirectory run;
  const std::shared_ptr<const Communicator> alone = Communicator::connect({});
  CheckpointSaver saver({.run = run.path(), .asynchronous = true}, alone, 0);
  RankCheckpoint first = checkpoint_of(1, *alone, 0);
  first.sections["optimizer"] = first.sections.at("model");
  saver.save(first);
  saver.save(checkpoint_of(2, *alone, 0));
  saver.wait();
  const io::CheckpointReader reader(run / "step-00000002");
  EXPECT_FALSE(reader.manifest().sections.contains("optimizer"));
  expect_step(reader, 2);
}

// The run is gone when rank 0 is to remove old checkpoints, once the new one is there.
TEST(CheckpointSaver, AnErrorOfTheRemovalIsOneOfAll) {
  const SharedDirectory files;
  testing::on_ranks(2, [&](const Launch& launch) {
    const auto ranks = testing::connect(launch);
    const fs::path run = files.path() / "run";
    const auto losing = std::make_shared<const InterruptedGroup>(*ranks, [&] {
      if (launch.rank == 0 && fs::exists(run / "step-00000001")) fs::rename(run, files.path() / "elsewhere");
    });
    CheckpointSaver saver({.run = run}, losing, launch.rank);
    EXPECT_THROW(saver.save(checkpoint_of(1, *ranks, launch.rank)), io::Error);
  });
}

TEST(CheckpointSaver, KeepsOneOrMore) {
  const std::shared_ptr<const Communicator> alone = Communicator::connect({});
  for (const int64_t keep : {0, -1}) {
    EXPECT_THAT([&] { CheckpointSaver({.run = "run", .keep = keep}, alone, 0); },
                ThrowsMessage<c10::ValueError>(HasSubstr("expected to keep 1 or more, got " + std::to_string(keep))));
  }
}

}  // namespace
}  // namespace plimsoll::shard
