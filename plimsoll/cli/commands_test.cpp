// compare, generate, inspect and info through the command.
#include <gmock/gmock.h>

#include "plimsoll/cli/tiny_run_testing.h"
#include "plimsoll/io/process_testing.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Compare, EndsWithATableAndAFile) {
  const TinyRun run;
  const Outcome outcome = run_program(run.arguments("compare", {"--out", run.file("out"), "--steps", "20", "--recipes",
                                                                "fp32,fp8,fp8", "--json", run.file("report")}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  const std::string table = outcome.output.substr(outcome.output.rfind("recipe  "));
  EXPECT_THAT(table, AllOf(HasSubstr("val loss"), HasSubstr("\nfp32"), HasSubstr("\nfp8"), HasSubstr("+0.00%")));

  const json document = json::parse(io::read_plainly(run.file("out/compare.json")));
  EXPECT_EQ(json::parse(io::read_plainly(run.file("report"))), document);
  const json results = document.at("results");
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0]["difference_percent"], 0);
  EXPECT_LT(results[1]["saved_activation_bytes"], results[0]["saved_activation_bytes"]);
  EXPECT_EQ(results[1]["final_val_loss"], results[2]["final_val_loss"]);
  const double reference = results[0]["final_val_loss"], loss = results[1]["final_val_loss"];
  EXPECT_DOUBLE_EQ(results[1]["difference_percent"], 100 * (loss - reference) / reference);
}

TEST(Compare, WithoutFp32DifferencesAreFromTheFirstRecipe) {
  const TinyRun run;
  const auto compare = [&](const char* out, const char* recipes) {
    return run_program(run.arguments("compare", {"--out", run.file(out), "--steps", "5", "--recipes", recipes}));
  };
  const Outcome outcome = compare("out", "bf16,fp8");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("vs bf16"), HasSubstr("+0.00%")));
  const json compared = json::parse(io::read_plainly(run.file("out/compare.json")));
  EXPECT_EQ(compared.at("baseline"), "bf16");
  EXPECT_EQ(compared.at("results")[0].at("difference_percent"), 0);
  const double reference = compared.at("results")[0].at("final_val_loss");
  const double loss = compared.at("results")[1].at("final_val_loss");
  EXPECT_DOUBLE_EQ(compared.at("results")[1].at("difference_percent"), 100 * (loss - reference) / reference);
  EXPECT_THAT(compare("last", "bf16,fp32").output, HasSubstr("vs fp32"));
  EXPECT_EQ(json::parse(io::read_plainly(run.file("last/compare.json"))).at("results")[1].at("difference_percent"), 0);
}

TEST(Compare, ARecipeThatDivergesIsARowAndExitThree) {
  const TinyRun run;
  const std::vector<std::string> all = {"--out", run.file("out"), "--steps", "12", "--lr", "1e30", "--clip", "1e30"};
  for (const char* resume : {"", "--resume"}) {
    std::vector<std::string> arguments = run.arguments("compare", all);
    arguments.insert(arguments.end(), {"--recipes", "bf16,fp8", "--eval-every", "0"});
    if (*resume != 0) arguments.emplace_back(resume);
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.exit_code, 3) << outcome.error;
    EXPECT_THAT(outcome.output, AllOf(HasSubstr("\nbf16 "), HasSubstr("\nfp8 ")));
    EXPECT_THAT(outcome.error,
                testing::EndsWith("plimsoll: compare: expected finite losses at the end, got Inf or NaN of "
                                  "bf16, fp8\n"));
    EXPECT_TRUE(json::parse(io::read_plainly(run.file("out/compare.json"))).at("results")[1]["diverged"]);
  }
}

TEST(Compare, ADirectoryThatAnotherOneWritesToIsRefused) {
  const TinyRun run;
  const auto arguments = run.arguments("compare", {"--out", run.file("out"), "--steps", "100000000"});
  Program first(arguments);
  run.wait_for_steps("out/fp32/train.jsonl", 5);
  const Outcome outcome = run_program(arguments);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.error, HasSubstr("out: expected a place that no other process writes to"));
  EXPECT_GE(run.steps("out/fp32/train.jsonl").size(), 5u);
}

TEST(Compare, IsTheSameAsTrainingAlone) {
  const TinyRun run;
  ASSERT_EQ(run_program(run.arguments("compare", {"--out", run.file("out"), "--steps", "20", "--recipes", "bf16,fp8"}))
                .exit_code,
            0);
  ASSERT_EQ(
      run.train({"--out", run.file("alone"), "--steps", "20", "--recipe", "fp8", "--json", run.file("alone.jsonl")})
          .exit_code,
      0);
  EXPECT_EQ(run.steps("out/fp8/train.jsonl"), run.steps("alone.jsonl"));
}

TEST(Compare, InterruptedAndResumedGivesTheSameResults) {
  if (!io::can_trace()) GTEST_SKIP() << "a process may not trace its children here";
  const TinyRun run;
  const auto arguments = [&](const char* out) {
    return run.arguments("compare", {"--out", run.file(out), "--steps", "150", "--recipes", "fp32,fp8"});
  };
  ASSERT_EQ(run_program(arguments("whole")).exit_code, 0);
  {
    Program program(arguments("cut"), Program::be_traced);
    program.hold_when([&] { return run.has_lines("cut/fp8/train.jsonl", 20); });
    program.send(SIGINT);
    ASSERT_EQ(program.wait().exit_code, 130);
  }
  std::vector<std::string> again = arguments("cut");
  again.push_back("--resume");
  const Outcome resumed = run_program(again);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.error;
  EXPECT_EQ(run.steps("cut/fp8/train.jsonl"), run.steps("whole/fp8/train.jsonl"));
}

TEST(Compare, FinishedRunsAreSummedUpAgainBesideANewOne) {
  const TinyRun run;
  const auto compare = [&](const char* recipes, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--out", run.file("out"), "--steps", "5", "--recipes", recipes};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(run.arguments("compare", all));
  };
  const auto results = [&] { return json::parse(io::read_plainly(run.file("out/compare.json"))).at("results"); };
  ASSERT_EQ(compare("bf16", {}).exit_code, 0);
  const json before = results().at(0);
  const Outcome resumed = compare("bf16,fp8", {"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.error;
  const json after = results();
  ASSERT_EQ(after.size(), 2u);
  for (const char* key : {"recipe", "steps", "final_val_loss", "tokens_per_s", "saved_activation_bytes", "diverged"})
    EXPECT_EQ(after.at(0).at(key), before.at(key)) << key;
  // Before the last checkpoint was written.
  EXPECT_NEAR(after.at(0).at("peak_rss_bytes"), before.at("peak_rss_bytes").get<double>(), 4 << 20);
}

TEST(Compare, FinishedRunsOfAnotherSeedRecipeOrTextAreRefused) {
  const TinyRun run;
  const auto compare = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--out", run.file("out"), "--steps", "5", "--recipes", "bf16"};
    all.insert(all.end(), more.begin(), more.end());
    return run_program(run.arguments("compare", all));
  };
  ASSERT_EQ(compare({}).exit_code, 0);
  const auto expect_refused = [&](const std::vector<std::string>& more, const char* words) {
    const Outcome outcome = compare(more);
    EXPECT_EQ(outcome.exit_code, 2) << words;
    EXPECT_THAT(outcome.error, HasSubstr(words));
  };
  expect_refused({"--resume", "--seed", "2"}, "expected a run with seed 2, got 1");
  expect_refused({"--resume", "--recipes", R"({"name": "bf16"})"}, "expected a run with recipe ");
  std::string text = io::read_plainly(run.file("data/text.txt"));
  text.back() = 'x';
  io::write_plainly(run.file("data/text.txt"), text);
  expect_refused({"--resume"}, "expected a run with data_sha256");
}

TEST(Compare, AFailedRunEndsItWithItsOneLine) {
  const TinyRun run;
  const Outcome outcome = run_program(run.arguments("compare", {"--out", run.file("out"), "--context", "100000"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
}

TEST(Compare, ALossThatIsNanIsPrintedWithoutASign) {
  const TinyRun run;
  // Steps of this size leave no weight finite.
  const Outcome outcome = run_program(
      run.arguments("compare", {"--out", run.file("out"), "--steps", "4", "--lr", "1e30", "--recipes", "fp32"}));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.output, HasSubstr("validation loss nan, "));
  EXPECT_THAT(outcome.output, ContainsRegex("fp32 +nan "));
  EXPECT_THAT(outcome.output, Not(HasSubstr("-nan")));
}

class Trained : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(run_.train({"--out", run_.file("out"), "--steps", "60", "--save-every", "30"}).exit_code, 0);
  }

  Outcome generate(std::vector<std::string> more) const {
    more.insert(more.begin(), {"generate", "--checkpoint", run_.file("out"), "--prompt", "line 1", "--tokens", "60"});
    return run_program(more);
  }

  TinyRun run_;
};

TEST_F(Trained, GenerateContinuesThePromptBeyondTheContext) {
  const Outcome outcome = generate({"--json", run_.file("log")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  const std::string log = io::read_plainly(run_.file("log"));
  const json written = json::parse(log.substr(log.rfind('\n', log.size() - 2) + 1));
  EXPECT_EQ(written["tokens"], 60);
  EXPECT_EQ(outcome.output, "line 1" + written["text"].get<std::string>() + "\n");
}

TEST_F(Trained, GenerateDependsOnTheSeedAlone) {
  EXPECT_EQ(generate({"--seed", "3"}).output, generate({"--seed", "3"}).output);
  EXPECT_NE(generate({"--seed", "3"}).output, generate({"--seed", "4"}).output);
  EXPECT_EQ(generate({"--temperature", "0", "--seed", "3"}).output, generate({"--top-k", "1", "--seed", "4"}).output);
}

TEST(Generate, EndsWhereTheLogitsAreNotFinite) {
  const TinyRun run;
  // Steps of this size leave no weight finite.
  run.train({"--out", run.file("out"), "--steps", "4", "--save-every", "4", "--lr", "1e30"});
  const Outcome outcome = run_program({"generate", "--checkpoint", run.file("out"), "--tokens", "5"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.error, "plimsoll: generate: expected finite logits, got Inf or NaN after 0 tokens\n");
}

TEST_F(Trained, GenerateTakesOneStepToo) {
  const Outcome outcome = run_program({"generate", "--checkpoint", run_.file("out/step-00000030"), "--tokens", "3"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
}

TEST_F(Trained, GenerateSaysWhatTheWatchHasSeen) {
  const Outcome outcome = generate({"--watch", "guard", "--json", run_.file("watch")});
  EXPECT_EQ(outcome.output, generate({}).output);
  EXPECT_THAT(outcome.error, StartsWith("watch guard: 0 made Inf or NaN"));
  const std::string lines = io::read_plainly(run_.file("watch"));
  EXPECT_THAT(lines, HasSubstr("\"name\":\"blocks.0.layernorm_mlp.fc1/output\""));
  EXPECT_EQ(generate({"--watch", "gard"}).exit_code, 2);
}

TEST(Train, SaysWhatTheWatchHasSeen) {
  const TinyRun run;
  const Outcome outcome = run.train({"--out", run.file("out"), "--steps", "3", "--watch", "count"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_THAT(outcome.error, HasSubstr("watch count: 0 made Inf or NaN"));
  EXPECT_THAT(io::read_plainly(run.file("out/watch.jsonl")), HasSubstr("/grad_weight\""));
}

TEST_F(Trained, GenerateRefusesWhatIsNoCheckpoint) {
  const Outcome outcome = run_program({"generate", "--checkpoint", run_.file("data")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.error,
              HasSubstr("expected a Hugging Face directory with its config.json, a checkpoint or a run with one"));
}

TEST_F(Trained, ConsolidateWritesASectionAsOneFile) {
  const Outcome outcome =
      run_program({"consolidate", run_.file("out"), "--out", run_.file("whole.safetensors"), "--section", "optimizer"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_THAT(outcome.output, HasSubstr("step-00000060, written by 1 process"));
  EXPECT_THAT(run_program({"inspect", run_.file("whole.safetensors")}).output, HasSubstr("head.weight.exp_avg_sq"));
  const Outcome wrong =
      run_program({"consolidate", run_.file("out"), "--out", run_.file("other.safetensors"), "--section", "weights"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.error, HasSubstr("expected a section, one of model, optimizer, random, got 'weights'"));
}

TEST_F(Trained, ConsolidateReplacesNothing) {
  std::filesystem::create_symlink("nowhere", run_.file("link"));
  for (const char* name : {"out/step-00000060/model.safetensors", "out/step-00000060/state.json", "out/train.jsonl",
                           "data/text.txt", "data", "link"}) {
    const bool is_file = std::filesystem::is_regular_file(run_.file(name));
    const std::string before = is_file ? io::read_plainly(run_.file(name)) : "";
    for (const char* checkpoint : {"out", "data"}) {  // in data there is none, which nobody has looked for
      const Outcome outcome = run_program({"consolidate", run_.file(checkpoint), "--out", run_.file(name)});
      EXPECT_EQ(outcome.exit_code, 2) << name;
      EXPECT_EQ(outcome.error, "plimsoll: " + run_.file(name).native() +
                                   ": expected a free name for a new file, got one that exists\n");
    }
    EXPECT_EQ(is_file ? io::read_plainly(run_.file(name)) : "", before) << name;
  }
}

TEST(Consolidate, NamesEachStepThatItPassesOver) {
  const TinyRun run;
  ASSERT_EQ(run.train({"--out", run.file("run"), "--steps", "3", "--save-every", "1", "--keep", "3"}).exit_code, 0);
  const auto damage = [&](int step) {
    const std::string file = "run/step-0000000" + std::to_string(step) + "/model.safetensors";
    std::filesystem::resize_file(run.file(file), 1000);
    return file;
  };
  const std::string newest = damage(3);
  const Outcome older = run_program({"consolidate", run.file("run"), "--out", run.file("whole")});
  EXPECT_EQ(older.exit_code, 0) << older.error;
  EXPECT_THAT(older.output, HasSubstr("step-00000002, written by"));
  const auto names_newest = AllOf(StartsWith("plimsoll: warning: "), HasSubstr(newest + ": expected "));
  EXPECT_THAT(older.error, names_newest);
  EXPECT_THAT(run_program({"inspect", run.file("run")}).error, names_newest);
  EXPECT_THAT(run_program({"generate", "--checkpoint", run.file("run"), "--tokens", "1"}).error, names_newest);
  EXPECT_THAT(run_program({"gauge", "--model", run.file("run"), "--out", run.file("gauged")}).error, names_newest);
  const std::string second = damage(2), first = damage(1);
  const Outcome none = run_program({"consolidate", run.file("run"), "--out", run.file("none")});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.error, AllOf(HasSubstr(newest), HasSubstr(second), HasSubstr(first)));
  EXPECT_FALSE(std::filesystem::exists(run.file("none")));
}

TEST_F(Trained, InspectReportsEveryTensor) {
  const Outcome outcome =
      run_program({"inspect", run_.file("out/step-00000060/model.safetensors"), "--json", run_.file("report")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_THAT(outcome.output, HasSubstr("token_embedding.weight"));
  std::istringstream lines(io::read_plainly(run_.file("report")));
  size_t heads = 0;
  for (std::string line; std::getline(lines, line);) {
    const json tensor = json::parse(line);
    if (tensor["name"] != "head.weight") continue;
    ++heads;
    EXPECT_EQ(tensor["shape"], json({256, 32}));
    EXPECT_GT(tensor["amax"], 0);
    EXPECT_GT(tensor["headroom_bits"]["e5m2"], tensor["headroom_bits"]["e4m3"]);
  }
  EXPECT_EQ(heads, 1u);
}

TEST(Info, NamesTheMachine) {
  const Outcome outcome = run_program({"info"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  for (const char* part : {"CPU", "ISA", "gemm", "threads", "torch 2.", "CUDA ", "GFLOP/s", "GB/s"})
    EXPECT_THAT(outcome.output, HasSubstr(part));
}

TEST(Info, LimitsAreATable) {
  const Outcome outcome = run_program({"info", "--limits"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  for (const char* row :
       {"\nFP32 multiply-add", "\nL2 read", "\nL3 copy", "\nmemory in place", "\nfirst touch", "\nfork and join"})
    EXPECT_THAT(outcome.output, HasSubstr(row));
}

}  // namespace
}  // namespace plimsoll::cli
