// Training under the recipe `auto` through the command: its log, and a run that was cut.
#include <gmock/gmock.h>

#include "plimsoll/cli/tiny_run_testing.h"
#include "plimsoll/io/process_testing.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Bounds between the errors of this model's operands, so that products go up and come down all the time.
constexpr const char* kRestless = R"({"name": "auto", "every": 3, "votes": 1, "ballots": 2, "quiet": 5, "window": 7,
    "bound": [1.02, 1.02, 1.02], "demote_share": 1})";

std::vector<std::string> restless_run(const TinyRun& run, const std::string& name) {
  return {"--out", run.file(name), "--json", run.file(name + ".jsonl"), "--recipe", kRestless, "--steps",
          "120",   "--save-every", "20"};
}

TEST(TrainUnderAuto, KilledAndResumedRunHasTheSameBitsAndDecisions) {
  if (!io::can_trace()) GTEST_SKIP() << "a process may not trace its children here";
  const TinyRun run;
  ASSERT_EQ(run.train(restless_run(run, "whole")).exit_code, 0);
  {
    Program program(run.arguments("train", restless_run(run, "cut")), Program::be_traced);
    program.hold_when([&] { return run.has_lines("cut.jsonl", 50); });
    program.send(SIGKILL);
    ASSERT_EQ(program.wait().exit_code, 128 + SIGKILL);
  }
  std::vector<std::string> again = restless_run(run, "cut");
  again.push_back("--resume");
  const Outcome resumed = run.train(again);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.error;
  EXPECT_THAT(resumed.error, HasSubstr("resuming after"));
  EXPECT_EQ(run.steps("cut.jsonl"), run.steps("whole.jsonl"));
}

TEST(TrainUnderAuto, TheLogSaysWhatChangedAndWhy) {
  const TinyRun run;
  const Outcome outcome = run.train(restless_run(run, "whole"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  const auto steps = run.steps("whole.jsonl");
  std::map<std::string, std::string> formats;  // as the changes so far say
  double narrow = 0, all = 0;
  for (const auto& [step, line] : steps) {
    const json& precision = line.at("precision");
    EXPECT_EQ(precision["formats"], json({"e4m3", "bf16"}));
    const json products = precision.value("products", json::object());
    EXPECT_EQ(products.size() > 0, line.contains("slots")) << step;
    narrow += precision["share"][0].get<double>();
    ++all;
    for (const json& change : precision.value("changes", json::array())) {
      const std::string name = change["layer"].get<std::string>() + "/" + change["product"].get<std::string>();
      const std::string before = formats.contains(name) ? formats[name] : "e4m3";
      EXPECT_EQ(change["from"], before) << name;
      formats[name] = change["to"];
      if (change["reason"] == "error") {
        EXPECT_GT(change["error"].get<double>(), change["bound"].get<double>());
      }
    }
    for (const auto& [name, product] : products.items()) {
      EXPECT_EQ(product["format"], formats.contains(name) ? formats[name] : "e4m3") << name << " in step " << step;
    }
  }
  EXPECT_GE(formats.size(), 3u);
  EXPECT_THAT(outcome.error, HasSubstr("e4m3 -> bf16 after step"));
  const std::string log = io::read_plainly(run.file("whole.jsonl"));
  const json summary = json::parse(log.substr(log.rfind('\n', log.size() - 2) + 1));
  // Each step has as many multiply-adds as the others.
  EXPECT_NEAR(summary["precision"]["share"][0].get<double>(), narrow / all, all * 0x1p-52);
}

TEST(TrainUnderAuto, AnAutoThatIsNoneIsAUsageError) {
  const TinyRun run;
  const auto error_of = [&](const std::string& recipe) {
    const Outcome outcome = run.train({"--out", run.file("out"), "--steps", "2", "--recipe", recipe});
    EXPECT_EQ(outcome.exit_code, 2) << recipe;
    return outcome.error;
  };
  EXPECT_THAT(error_of("auto:bf16"), HasSubstr("--recipe: recipe auto: expected a ladder"));
  EXPECT_THAT(error_of("auto:e4m4>bf16"), HasSubstr("expected e4m3"));
  EXPECT_THAT(error_of("auti"), HasSubstr("expected auto"));
}

}  // namespace
}  // namespace plimsoll::cli
