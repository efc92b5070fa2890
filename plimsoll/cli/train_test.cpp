// Training through the command: what it writes, and how it ends.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cmath>

#include "plimsoll/cli/tiny_run_testing.h"
#include "plimsoll/io/testing.h"

namespace plimsoll::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST(Train, LossFallsAndTheLogEndsWithASummary) {
  const TinyRun run;
  const Outcome outcome = run.train(run.whole_run("fp8"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  const auto steps = run.steps("whole.jsonl");
  ASSERT_EQ(steps.size(), 300u);
  EXPECT_LT(steps.at(300)["loss"].get<double>(), 0.7 * steps.at(1)["loss"].get<double>());
  for (const char* key : {"step", "loss", "val_loss", "lr", "grad_norm", "headroom_bits"})
    EXPECT_TRUE(steps.at(50).contains(key));
  EXPECT_TRUE(steps.at(50)["val_loss"].is_number());
  EXPECT_TRUE(steps.at(51)["val_loss"].is_null());
  EXPECT_TRUE(steps.at(50)["headroom_bits"].is_number());

  const std::string log = io::read_plainly(run.file("whole.jsonl"));
  const json summary = json::parse(log.substr(log.rfind('\n', log.size() - 2) + 1));
  EXPECT_EQ(summary["recipe"], "fp8");
  EXPECT_EQ(summary["final_val_loss"], steps.at(300)["val_loss"]);
  for (const char* key : {"tokens_per_s", "saved_activation_bytes", "peak_rss_bytes"})
    EXPECT_GT(summary[key], 0) << key;
}

TEST(Train, TheRateFallsToATenthAsTheScheduleSays) {
  const TinyRun run;
  constexpr double kPeak = 1e-3;  // the default of --lr; two steps of warm-up
  for (const std::string schedule : {"linear", "cosine"}) {
    const std::string log = schedule + ".jsonl";
    ASSERT_EQ(run.train({"--out", run.file(schedule), "--json", run.file(log), "--steps", "10", "--schedule", schedule})
                  .exit_code,
              0);
    const auto steps = run.steps(log);
    EXPECT_DOUBLE_EQ(steps.at(3)["lr"].get<double>(), kPeak) << schedule;
    EXPECT_DOUBLE_EQ(steps.at(7)["lr"].get<double>(), 0.55 * kPeak) << schedule;
  }
  // A quarter of the way: 1 - 0.9 / 4, and the cosine's 0.1 + 0.9 (1 + cos(pi / 4)) / 2.
  EXPECT_DOUBLE_EQ(run.steps("linear.jsonl").at(5)["lr"].get<double>(), 0.775e-3);
  EXPECT_DOUBLE_EQ(run.steps("cosine.jsonl").at(5)["lr"].get<double>(), (0.1 + 0.45 * (1 + std::sqrt(0.5))) * kPeak);
}

TEST(Train, LogsAmaxAndScaleOfEachOperandEveryFewSteps) {
  const TinyRun run;
  ASSERT_EQ(run.train({"--out", run.file("out"), "--steps", "8", "--log-scales", "3"}).exit_code, 0);
  const auto steps = run.steps("out/train.jsonl");
  ASSERT_EQ(steps.size(), 8u);
  for (const auto& [step, line] : steps) EXPECT_EQ(line.contains("slots"), step % 3 == 1) << step;
  for (const char* role : {"input", "weight", "grad_output"}) {
    const json& first = steps.at(1)["slots"].at(std::string("blocks.0.layernorm_mlp.fc1/") + role);
    // An operand's scale in the first step is that of its own amax, a quotient rounded to FP32.
    constexpr double kRounding = 0x1p-24 * (1 + 0x1p-24);
    EXPECT_NEAR(first["headroom_bits"].get<double>(), 0, kRounding / std::log(2)) << role;
    const double largest = first["format"] == "e4m3" ? 448 : 57344;
    EXPECT_NEAR(first["amax"].get<double>() / first["scale"].get<double>() / largest, 1, kRounding) << role;
    EXPECT_EQ(first["non_finite"], 0);
  }
  EXPECT_EQ(steps.at(1)["slots"].size(), steps.at(7)["slots"].size());
  ASSERT_EQ(run.train({"--out", run.file("none"), "--steps", "2", "--log-scales", "0"}).exit_code, 0);
  EXPECT_FALSE(run.steps("none/train.jsonl").at(1).contains("slots"));
}

TEST(Train, Fp16ScalesItsLossUnlessToldOtherwise) {
  const TinyRun run;
  ASSERT_EQ(run.train(run.whole_run("fp16")).exit_code, 0);
  const auto steps = run.steps("whole.jsonl");
  EXPECT_EQ(steps.at(1)["loss_scale"], 65536);
  EXPECT_LT(steps.at(300)["loss"].get<double>(), 0.7 * steps.at(1)["loss"].get<double>());
  std::vector<std::string> fixed = run.cut_run("fp16");
  fixed.insert(fixed.end(), {"--loss-scale", "1e37", "--steps", "3"});
  const Outcome outcome = run.train(fixed);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  const auto skipped = run.steps("cut.jsonl");
  EXPECT_EQ(skipped.at(3)["loss_scale"], static_cast<double>(1e37f));
  EXPECT_THAT(skipped.at(3)["warning"].get<std::string>(), HasSubstr("no update"));
}

TEST(Train, TheTailOfTheModelHasNoCodes) {
  const TinyRun run;
  const auto formats = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {
        "--out", run.file(name), "--audit", run.file(name + ".audit"), "--layers", "3", "--steps",
        "2",     "--recipe",     "nvfp4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run.train(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    std::map<std::string, std::string> inputs;  // of each block's fc1
    std::istringstream lines(io::read_plainly(run.file(name + ".audit")));
    for (std::string line; std::getline(lines, line);) {
      const json row = json::parse(line);
      if (row["op"] != "gemm output" || !row["layer"].get<std::string>().ends_with("fc1")) continue;
      inputs[row["layer"].get<std::string>().substr(0, 8)] = row["operands"][0]["format"];
    }
    return inputs;
  };
  using Formats = std::map<std::string, std::string>;
  EXPECT_EQ(formats("own", {}), (Formats{{"blocks.0", "e2m1"}, {"blocks.1", "e2m1"}, {"blocks.2", "bf16"}}));
  EXPECT_EQ(formats("none", {"--high-precision-tail", "0"}),
            (Formats{{"blocks.0", "e2m1"}, {"blocks.1", "e2m1"}, {"blocks.2", "e2m1"}}));
  EXPECT_EQ(formats("most", {"--high-precision-tail", "0.9"}),
            (Formats{{"blocks.0", "e2m1"}, {"blocks.1", "bf16"}, {"blocks.2", "bf16"}}));
  const Outcome resumed = run.train({"--out", run.file("own"), "--layers", "3", "--steps", "3", "--recipe", "nvfp4",
                                     "--high-precision-tail", "0", "--resume"});
  EXPECT_EQ(resumed.exit_code, 2);
  EXPECT_THAT(resumed.error, HasSubstr("expected a run with high_precision_tail 0.0, got 0.15"));
}

// Without a tail: 1.5 % is what training in these formats is published to cost with one.
TEST(Train, FourBitsEndNearTheLossOfBf16) {
  const TinyRun run;
  const auto final_loss = [&](const std::string& recipe) {
    const Outcome outcome = run.train({"--out", run.file(recipe), "--layers", "2", "--steps", "100", "--eval-every",
                                       "0", "--high-precision-tail", "0", "--recipe", recipe});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    return run.steps(recipe + "/train.jsonl").at(100)["val_loss"].get<double>();
  };
  const double expected = final_loss("bf16");
  for (const char* recipe : {"nvfp4", "nvfp4-4over6", "ms-eden", "mxfp4"}) {
    EXPECT_LT(std::fabs(final_loss(recipe) / expected - 1), 0.015) << recipe;
  }
}

TEST(Train, TheLastStepsAreInTheRecipeThatItFinishesIn) {
  const TinyRun run;
  const auto train = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--out",    run.file(name), "--steps", "6",
                                          "--recipe", "nvfp4",        "--audit", run.file(name + ".audit")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run.train(arguments);
  };
  // Calls of fc1's product by the format of its input, in training and in the validation at the end.
  const auto calls = [&](const std::string& name) {
    std::map<std::string, int64_t> result;
    std::istringstream lines(io::read_plainly(run.file(name + ".audit")));
    for (std::string line; std::getline(lines, line);) {
      const json row = json::parse(line);
      if (row["op"] == "gemm grad_weight" && row["layer"] == "blocks.0.layernorm_mlp.fc1") {
        result[row["operands"][1]["format"]] += row["calls"].get<int64_t>();
      }
    }
    return result;
  };
  ASSERT_EQ(train("mixed", {"--finish-in", "bf16", "0.3"}).exit_code, 0);
  EXPECT_EQ(calls("mixed"), (std::map<std::string, int64_t>{{"bf16", 2}, {"e2m1", 4}}));
  const Outcome wrong = train("fp16", {"--finish-in", "fp16", "0.3"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.error, HasSubstr("--finish-in: expected a recipe with fp16 if --recipe has it"));
  EXPECT_THAT(train("one", {"--finish-in", "bf16"}).error, HasSubstr("expected a recipe and a share, got bf16\n"));
  EXPECT_THAT(train("three", {"--finish-in", "bf16", "0.1", "x"}).error, HasSubstr(", got bf16 0.1 x\n"));
  EXPECT_THAT(train("none", {"--finish-in", "bf16", "0"}).error, HasSubstr("expected a share from"));
}

TEST(Train, ThreadsDoNotChangeTheBits) {
  const TinyRun run;
  for (const char* threads : {"1", "2", "3"}) {
    ASSERT_EQ(run.train({"--out", run.file(threads), "--json", run.file(std::string(threads) + ".jsonl"), "--steps",
                         "20", "--threads", threads})
                  .exit_code,
              0);
  }
  EXPECT_EQ(run.steps("1.jsonl"), run.steps("2.jsonl"));
  EXPECT_EQ(run.steps("1.jsonl"), run.steps("3.jsonl"));
}

TEST(Train, AccumulationReachesEveryWindow) {
  const TinyRun run;
  ASSERT_EQ(run.train({"--out", run.file("a"), "--json", run.file("a.jsonl"), "--steps", "10", "--accumulate", "2",
                       "--batch", "2", "--recipe", "fp32"})
                .exit_code,
            0);
  ASSERT_EQ(
      run.train({"--out", run.file("b"), "--json", run.file("b.jsonl"), "--steps", "10", "--recipe", "fp32"}).exit_code,
      0);
  // The same windows in another grouping: four of them are averaged in two orders, and each step adds its roundings.
  for (const auto& [step, line] : run.steps("b.jsonl")) {
    const double loss = line["loss"].get<double>(), rounding = 2 * 4 * static_cast<double>(step) * 0x1p-24 * loss;
    EXPECT_NEAR(run.steps("a.jsonl").at(step)["loss"].get<double>(), loss, rounding) << step;
  }
}

// A parameter's bytes in a checkpoint, of recipes that keep no history of amaxes: the model's, the states'.
struct KeptBytes {
  std::vector<std::string> options;
  double model, states;
};

TEST(Train, StatesOfFewerBitsTakeWhatThePageSaysAndAResumedRunHasTheSameBits) {
  const TinyRun run;
  const auto arguments = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--out", run.file(name), "--steps", "8", "--save-every", "4", "--log-every", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const double parameters = [&] {
    EXPECT_EQ(run.train(arguments("fp32", {"--recipe", "fp16", "--async-save"})).exit_code, 0);
    return static_cast<double>(fs::file_size(run.file("fp32/step-00000008/model.safetensors"))) / 4;
  }();
  const std::vector<KeptBytes> kept = {
      {{"--recipe", "fp16", "--optimizer-state", "bf16"}, 4, 4},
      {{"--recipe", "fp8-current", "--optimizer-state", "8bit"}, 4, 2.125},
      {{"--recipe", "fp8-current", "--optimizer-state", "8bit", "--masters", "split"}, 2, 3.125},
      {{"--recipe", "bf16", "--optimizer-state", "8bit", "--masters", "none"}, 2, 2.125},
  };
  for (size_t i = 0; i < kept.size(); ++i) {
    const std::string whole = "whole" + std::to_string(i), cut = "cut" + std::to_string(i);
    for (const std::string& name : {whole, cut}) {
      const auto result = run.train(arguments(name, kept[i].options));
      ASSERT_EQ(result.exit_code, 0) << result.error;
    }
    fs::remove_all(run.file(cut + "/step-00000008"));
    const std::vector<std::string> recipe(kept[i].options.begin(), kept[i].options.begin() + 2);
    EXPECT_THAT(run.train(and_also(arguments(cut, recipe), "--resume")).error,
                HasSubstr("expected a run with moments \"fp32\""));
    ASSERT_EQ(run.train(and_also(arguments(cut, kept[i].options), "--resume")).exit_code, 0);
    const auto file = [&](const std::string& of, const char* name) {
      return run.file(of + "/step-00000008/" + name + ".safetensors");
    };
    for (const char* name : {"model", "optimizer"})
      EXPECT_EQ(io::read_plainly(file(cut, name)), io::read_plainly(file(whole, name))) << name;
    // Names and step counts take a tenth at most of so small a model.
    const auto bytes = [&](const char* name) { return static_cast<double>(fs::file_size(file(whole, name))); };
    EXPECT_NEAR(bytes("model"), kept[i].model * parameters, 0.4 * parameters);
    EXPECT_NEAR(bytes("optimizer"), kept[i].states * parameters, 0.4 * parameters);
  }
}

TEST(Train, Bf16WeightsAreRefusedUnderFp16) {
  const TinyRun run;
  const auto result = run.train({"--out", run.file("out"), "--recipe", "fp16", "--masters", "split"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("--masters split: expected a recipe without fp16"));
}

TEST(Train, ALossScaleThatStaysHasNoHysteresis) {
  const TinyRun run;
  const auto train = [&](const char* loss_scale) {
    return run.train({"--out", run.file("out"), "--steps", "3", "--recipe", "fp16", "--loss-scale", loss_scale,
                      "--loss-scale-hysteresis", "2"});
  };
  for (const char* loss_scale : {"none", "8"}) {
    const Outcome outcome = train(loss_scale);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.error, HasSubstr("--loss-scale-hysteresis 2: expected a loss scale that changes, got"));
  }
  const Outcome outcome = train("dynamic");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
}

TEST(Train, AFileInPlaceOfTheDirectoryIsRefusedAndLeftAsItIs) {
  const TinyRun run;
  io::write_plainly(run.file("taken"), "text");
  const Outcome outcome = run_program(run.arguments("train", {"--out", run.file("taken")}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.error, HasSubstr("taken: expected a directory, or a place for one, got a file"));
  EXPECT_EQ(io::read_plainly(run.file("taken")), "text");
}

TEST(Train, FullDiskIsOneLineAndLeavesNothingHalfWritten) {
  const TinyRun run;
  const auto small_files = [] {
    const rlimit limit{10'000, 10'000};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Outcome outcome = run_program(
      run.arguments("train", {"--out", run.file("out"), "--json", "/dev/null", "--steps", "2"}), small_files);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.error, HasSubstr("model.safetensors: cannot write"));
  EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1);
  EXPECT_TRUE(fs::is_empty(run.file("out")));
}

// A rate of learning at which weights overflow.
std::vector<std::string> diverging(const TinyRun& run, const char* out) {
  return {"--out", run.file(out), "--steps", "12", "--lr", "1e30", "--clip", "1e30", "--eval-every", "0"};
}

TEST(Train, ARunThatDivergesEndsWithExitThreeAndOneLineOfIt) {
  const TinyRun run;
  for (const char* resume : {"", "--resume"}) {  // also where nothing is left to do
    std::vector<std::string> arguments = diverging(run, "out");
    if (*resume != 0) arguments.emplace_back(resume);
    const Outcome outcome = run.train(arguments);
    EXPECT_EQ(outcome.exit_code, 3) << outcome.error;
    EXPECT_THAT(outcome.error,
                testing::EndsWith("plimsoll: fp8: diverged: expected a finite loss after 12 steps, got Inf "
                                  "or NaN in validation\n"));
    EXPECT_THAT(outcome.output, HasSubstr("done: 12 steps"));
    const std::string log = io::read_plainly(run.file("out/train.jsonl"));
    EXPECT_EQ(json::parse(log.substr(log.rfind('\n', log.size() - 2) + 1))["diverged"], true);
  }
}

TEST(Train, ADirectoryThatAnotherRunWritesToIsRefusedUntilThatHasEnded) {
  const TinyRun run;
  const std::vector<std::string> endless = {"--out", run.file("out"), "--steps", "100000000", "--save-every", "0"};
  Program first(run.arguments("train", endless));
  run.wait_for_steps("out/train.jsonl", 5);
  for (const char* signal : {"running", "stopped"}) {
    if (signal == std::string("stopped")) first.send(SIGSTOP);
    const Outcome outcome = run.train({"--out", run.file("out"), "--steps", "2"});
    EXPECT_EQ(outcome.exit_code, 1) << signal;
    EXPECT_THAT(outcome.error, HasSubstr("out: expected a place that no other process writes to, got one that another "
                                         "run (process "));
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
  }
  const size_t before = run.steps("out/train.jsonl").size();
  EXPECT_GE(before, 5u) << "the second run left the log alone";
  first.send(SIGKILL);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGKILL);
  EXPECT_EQ(run.train({"--out", run.file("out"), "--steps", "2"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(run.file("out/.lock")));
}

TEST(Train, TwoRunsWithOneLogAreRefused) {
  const TinyRun run;
  Program first(run.arguments("train", {"--out", run.file("a"), "--json", run.file("log"), "--steps", "100000000"}));
  run.wait_for_steps("log", 5);
  const Outcome outcome = run.train({"--out", run.file("b"), "--json", run.file("log"), "--steps", "2"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.error, HasSubstr("log: expected a file that no other process writes to"));
  EXPECT_GE(run.steps("log").size(), 5u);
}

TEST(Train, FullLogIsAnError) {
  const TinyRun run;
  const Outcome outcome = run.train({"--out", run.file("out"), "--steps", "2", "--json", "/dev/full"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.error, HasSubstr("/dev/full: cannot write: No space left"));
}

}  // namespace
}  // namespace plimsoll::cli
