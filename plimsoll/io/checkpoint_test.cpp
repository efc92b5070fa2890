#include "plimsoll/io/checkpoint.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "plimsoll/io/error.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::io {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;

Checkpoint checkpoint_of(int64_t step) {
  return {.step = step,
          .sections = {{"model", {{"weight", at::full({100}, static_cast<double>(step))}}},
                       {"optimizer", {{"moment", at::full({100}, 0.5)}}}},
          .state = {{"cursor", {{"epoch", 1}, {"index", step}}}}};
}

void cut_by_one_byte(const fs::path& file) { fs::resize_file(file, fs::file_size(file) - 1); }

void flip_last_byte(const fs::path& file) {
  std::string text = read_plainly(file);
  text.back() = static_cast<char>(text.back() ^ 1);
  write_plainly(file, text);
}

TEST(Checkpoint, ComesBackAsItWas) {
  const TemporaryDirectory run;
  const fs::path saved = save_checkpoint(run.path(), checkpoint_of(123));
  EXPECT_EQ(saved.filename(), "step-00000123");
  const Checkpoint loaded = load_checkpoint(saved);
  EXPECT_EQ(loaded.step, 123);
  EXPECT_EQ(loaded.state, checkpoint_of(123).state);
  EXPECT_THAT(loaded.sections, SizeIs(2));
  EXPECT_TRUE(at::equal(loaded.sections.at("model").at("weight"), at::full({100}, 123.0)));
  EXPECT_TRUE(at::equal(loaded.sections.at("optimizer").at("moment"), at::full({100}, 0.5)));
}

TEST(Checkpoint, LatestIsTheLastCompleteOne) {
  const TemporaryDirectory run;
  for (const int64_t step : {9, 10, 100'000'000}) save_checkpoint(run.path(), checkpoint_of(step));
  fs::create_directory(run / "step-00000200.partial");
  const auto latest = load_latest_checkpoint(run.path());
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->checkpoint.step, 100'000'000);
  EXPECT_THAT(latest->refused, IsEmpty());
}

TEST(Checkpoint, RunWithoutOneHasNoLatest) {
  const TemporaryDirectory run;
  EXPECT_FALSE(load_latest_checkpoint(run.path()));
  EXPECT_FALSE(load_latest_checkpoint(run / "absent"));
}

TEST(Checkpoint, DamagedFileIsNamedAndThePreviousStepUsed) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}) {
    for (const auto damage : {+[](const fs::path& path) { fs::remove(path); }, &cut_by_one_byte, &flip_last_byte}) {
      const TemporaryDirectory run;
      save_checkpoint(run.path(), checkpoint_of(1));
      const fs::path newest = save_checkpoint(run.path(), checkpoint_of(2));
      // A manifest that lost its last newline or gained white space says the same.
      if (std::string_view(file) == "manifest.json") fs::resize_file(newest / file, fs::file_size(newest / file) - 2);
      damage(newest / file);
      EXPECT_THAT([&] { load_checkpoint(newest); }, ThrowsMessage<Error>(HasSubstr((newest / file).native())));
      const auto latest = load_latest_checkpoint(run.path());
      ASSERT_TRUE(latest);
      EXPECT_EQ(latest->checkpoint.step, 1);
      EXPECT_THAT(latest->refused, ElementsAre(HasSubstr(file)));
    }
  }
}

TEST(Checkpoint, OnlyDamagedOnesAreAnErrorThatNamesEach) {
  const TemporaryDirectory run;
  for (const int64_t step : {1, 2}) {
    cut_by_one_byte(save_checkpoint(run.path(), checkpoint_of(step)) / "model.safetensors");
  }
  EXPECT_THAT([&] { load_latest_checkpoint(run.path()); },
              ThrowsMessage<Error>(AllOf(HasSubstr("step-00000001/model.safetensors: expected"),
                                         HasSubstr("step-00000002/model.safetensors: expected"))));
}

TEST(Checkpoint, OnlyAFileThatIsTooShortMayBeTruncated) {
  const TemporaryDirectory run;
  const fs::path saved = save_checkpoint(run.path(), checkpoint_of(1));
  const auto bytes = fs::file_size(saved / "model.safetensors");
  fs::resize_file(saved / "model.safetensors", bytes + 1);
  EXPECT_THAT([&] { load_checkpoint(saved); },
              ThrowsMessage<Error>(EndsWith(compose("expected {} bytes, got {}", bytes, bytes + 1))));
  fs::resize_file(saved / "model.safetensors", bytes - 1);
  EXPECT_THAT([&] { load_checkpoint(saved); }, ThrowsMessage<Error>(EndsWith("(truncated?)")));
}

TEST(Checkpoint, ManifestCannotNameFilesElsewhere) {
  const TemporaryDirectory run;
  const fs::path saved = save_checkpoint(run.path(), checkpoint_of(1));
  write_plainly(saved / "manifest.json",
                R"({"step": 1, "world_size": 1, "files": {"../x": {"bytes": 0, "sha256": []}}, "tensors": {}})");
  EXPECT_THAT([&] { load_checkpoint(saved); }, ThrowsMessage<Error>(HasSubstr("expected plain file names")));
}

TEST(Checkpoint, SameStepIsReplaced) {
  const TemporaryDirectory run;
  save_checkpoint(run.path(), checkpoint_of(5));
  Checkpoint other = checkpoint_of(5);
  other.state = "other";
  save_checkpoint(run.path(), other);
  EXPECT_EQ(load_latest_checkpoint(run.path())->checkpoint.state, "other");
  EXPECT_THAT(list_checkpoints(run.path()), SizeIs(1));
}

TEST(Checkpoint, FullDiskLeavesNothingHalfWritten) {
  const TemporaryDirectory run;
  save_checkpoint(run.path(), checkpoint_of(1));
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{300, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_THROW(save_checkpoint(run.path(), checkpoint_of(2)), Error);
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(load_latest_checkpoint(run.path())->checkpoint.step, 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 1);
}

TEST(Checkpoint, WhatKilledProcessesLeftIsRemovedButNotAWholeOne) {
  const TemporaryDirectory run;
  for (const int64_t step : {1, 2}) save_checkpoint(run.path(), checkpoint_of(step));
  const fs::path whole = run / "step-00000002.replaced";  // its writer was killed before another one had its name
  fs::rename(run / "step-00000002", whole);
  for (const char* left : {"step-00000003.partial", "step-00000001.replaced", "step-00000001.removed"}) {
    write_plainly(run / left / "model.safetensors", "half");
  }
  remove_left_overs(run.path());
  EXPECT_THAT(list_checkpoints(run.path()), ElementsAre(run / "step-00000001", whole));
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 2);
  EXPECT_EQ(load_latest_checkpoint(run.path())->checkpoint.step, 2);
}

TEST(Checkpoint, OldOnesAreRemovedAndWhatKilledProcessesLeft) {
  const TemporaryDirectory run;
  for (const char* left : {"step-00000007.partial", "step-00000001.replaced", "step-00000002.removed"}) {
    write_plainly(run / left / "model.safetensors.partial", "half");
  }
  for (const int64_t step : {1, 2, 3, 4}) save_checkpoint(run.path(), checkpoint_of(step));
  remove_old_checkpoints(run.path(), 4, 2);
  EXPECT_THAT(list_checkpoints(run.path()), ElementsAre(run / "step-00000003", run / "step-00000004"));
  EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 2);
  remove_old_checkpoints(run.path(), 4, 2);
  EXPECT_THAT(list_checkpoints(run.path()), SizeIs(2));
}

TEST(Checkpoint, TheOneJustSavedAndThoseOfHigherStepsStay) {
  const TemporaryDirectory run;
  for (const int64_t step : {800, 900, 1000, 100, 150, 200}) save_checkpoint(run.path(), checkpoint_of(step));
  remove_old_checkpoints(run.path(), 200, 2);
  EXPECT_THAT(list_checkpoints(run.path()),
              ElementsAre(run / "step-00000150", run / "step-00000200", run / "step-00000800", run / "step-00000900",
                          run / "step-00001000"));
}

}  // namespace
}  // namespace plimsoll::io
