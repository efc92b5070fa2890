// A training run that is cut off and goes on: the same bits, or one clear error.
#include <gmock/gmock.h>

#include "plimsoll/cli/tiny_run_testing.h"
#include "plimsoll/io/process_testing.h"

namespace plimsoll::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class TrainUnder : public testing::TestWithParam<const char*> {};

TEST_P(TrainUnder, KilledAndResumedRunHasTheSameBits) {
  if (!io::can_trace()) GTEST_SKIP() << "a process may not trace its children here";
  const TinyRun run;
  ASSERT_EQ(run.train(run.whole_run(GetParam())).exit_code, 0);
  {
    Program program(run.arguments("train", run.cut_run(GetParam())), Program::be_traced);
    program.hold_when([&] { return run.has_lines("cut.jsonl", 110); });
    program.send(SIGKILL);
    ASSERT_EQ(program.wait().exit_code, 128 + SIGKILL);
  }
  const Outcome resumed = run.train(and_also(run.cut_run(GetParam()), "--resume"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.error;
  EXPECT_THAT(resumed.error, HasSubstr("resuming after"));
  EXPECT_EQ(run.steps("cut.jsonl"), run.steps("whole.jsonl"));
}

INSTANTIATE_TEST_SUITE_P(Recipes, TrainUnder, testing::Values("fp32", "fp16", "fp8", "mxfp8", "nvfp4"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(Train, CtrlCWritesACheckpointAndExits130) {
  if (!io::can_trace()) GTEST_SKIP() << "a process may not trace its children here";
  const TinyRun run;
  ASSERT_EQ(run.train(run.whole_run("fp8")).exit_code, 0);
  std::vector<std::string> arguments = run.cut_run("fp8");
  arguments[7] = "0";  // --save-every: the interrupt alone saves
  Program program(run.arguments("train", arguments), Program::be_traced);
  program.hold_when([&] { return run.has_lines("cut.jsonl", 30); });
  program.send(SIGINT);
  EXPECT_EQ(program.wait().exit_code, 130);
  EXPECT_FALSE(fs::is_empty(run.file("cut")));
  ASSERT_EQ(run.train(and_also(arguments, "--resume")).exit_code, 0);
  EXPECT_EQ(run.steps("cut.jsonl"), run.steps("whole.jsonl"));
}

class Resume : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(run_.train(first()).exit_code, 0); }

  std::vector<std::string> first() const {
    return {"--out", run_.file("out"), "--steps", "40", "--save-every", "10", "--json", run_.file("log")};
  }
  Outcome resume(std::vector<std::string> more = {}) const {
    std::vector<std::string> all = and_also(first(), "--resume");
    all.insert(all.end(), more.begin(), more.end());
    return run_.train(all);
  }

  TinyRun run_;
};

TEST_F(Resume, TakesThePreviousStepIfTheLastIsTruncatedAndNamesTheFile) {
  const auto whole = run_.steps("log");
  const fs::path file = run_.file("out/step-00000040/model.safetensors");
  fs::resize_file(file, fs::file_size(file) / 2);
  const Outcome resumed = resume();
  EXPECT_EQ(resumed.exit_code, 0);
  EXPECT_THAT(resumed.error, HasSubstr("step-00000040/model.safetensors: expected"));
  EXPECT_THAT(resumed.error, HasSubstr("resuming after " + run_.file("out/step-00000030").native()));
  EXPECT_EQ(run_.steps("log"), whole);
}

TEST_F(Resume, AtTheEndTrainsNothingAndSumsUpAgain) {
  const std::string before = io::read_plainly(run_.file("log"));
  EXPECT_EQ(resume().exit_code, 0);
  const auto value = [&](const std::string& log, const char* key) {
    return json::parse(log.substr(log.rfind('\n', log.size() - 2) + 1)).at(key);
  };
  const std::string after = io::read_plainly(run_.file("log"));
  for (const char* key : {"final_val_loss", "tokens_per_s", "saved_activation_bytes"})
    EXPECT_EQ(value(after, key), value(before, key));
}

TEST_F(Resume, AnotherModelRecipeOrSeedIsRefused) {
  EXPECT_THAT(resume({"--dim", "64"}).error, HasSubstr("expected a run with shape"));
  const Outcome recipe = resume({"--recipe", "bf16"});
  EXPECT_THAT(recipe.error, HasSubstr("expected a run with recipe \"bf16\", got \"fp8\""));
  EXPECT_EQ(recipe.exit_code, 2);
  EXPECT_EQ(resume({"--seed", "2"}).exit_code, 2);
}

TEST_F(Resume, ChangedOptionsAreNamed) {
  const Outcome same = resume();
  EXPECT_THAT(same.error, Not(HasSubstr("from here on")));
  const Outcome other = resume({"--lr", "0.5", "--keep", "7"});
  EXPECT_EQ(other.exit_code, 0) << other.error;
  EXPECT_THAT(other.error, HasSubstr("plimsoll: --lr was 0.001, from here on it is 0.5\n"));
  EXPECT_THAT(other.error, Not(HasSubstr("keep")));
}

TEST(Train, ARunWithALossScaleThatStaysIsResumed) {
  const TinyRun run;
  const auto train = [&](const char* steps, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--out",  run.file("out"), "--steps", steps,          "--recipe",
                                    "fp16",   "--loss-scale",  "1024",    "--save-every", "2",
                                    "--json", run.file("log")};
    all.insert(all.end(), more.begin(), more.end());
    return run.train(all);
  };
  ASSERT_EQ(train("4", {}).exit_code, 0);
  const auto whole = run.steps("log");
  fs::remove_all(run.file("out/step-00000004"));
  const Outcome resumed = train("4", {"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.error;
  EXPECT_EQ(run.steps("log"), whole);
}

TEST_F(Resume, FewerStepsThanAreDoneAreRefused) {
  const Outcome fewer = resume({"--steps", "39"});
  EXPECT_EQ(fewer.exit_code, 2);
  EXPECT_THAT(fewer.error, HasSubstr("--steps: expected at least the 40 steps that " + run_.file("out").native() +
                                     " has done, got 39"));
}

TEST_F(Resume, WithoutTheFlagCheckpointsAreNotOverwritten) {
  const Outcome outcome = run_.train(first());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("expected a directory without checkpoints, or --resume"));
}

TEST(Train, ResumeOfARunThatNeverSavedStartsIt) {
  const TinyRun run;
  const Outcome outcome = run.train({"--out", run.file("out"), "--steps", "2", "--resume"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.error, HasSubstr("no checkpoint yet"));
}

TEST_F(Resume, AnotherTextOfTheSameLengthIsRefused) {
  std::string text = io::read_plainly(run_.file("data/text.txt"));
  text.back() = text.back() == 'x' ? 'y' : 'x';
  io::write_plainly(run_.file("data/text.txt"), text);
  EXPECT_THAT(resume().error, HasSubstr("expected a run with data_sha256"));
}

}  // namespace
}  // namespace plimsoll::cli
