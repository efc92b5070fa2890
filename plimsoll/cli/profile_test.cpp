// train --profile through the command.
#include <gmock/gmock.h>

#include <set>
#include <string>

#include "plimsoll/cli/tiny_run_testing.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

TEST(Profile, IsATableAndATrace) {
  const TinyRun run;
  const Outcome outcome = run.train({"--out", run.file("out"), "--steps", "8", "--profile", run.file("trace.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.error;
  // Ops of short time share a row, so those of a table depend on the clock; the trace has them all.
  for (const char* part : {"profile of 5 steps", "\nforward", "\nbackward", "\noptimizer", "\nstep", " of limit", "%"})
    EXPECT_THAT(outcome.output, HasSubstr(part));

  const json trace = json::parse(io::read_plainly(run.file("trace.json")));
  double steps = 0, products = 0;
  std::set<std::string> names;
  for (const json& event : trace.at("traceEvents")) {
    names.insert(event.at("name").get<std::string>());
    steps += event.at("name") == "backward" ? 1 : 0;
    if (event.at("name") == "gemm output") products += event.at("args").at("operations").get<double>();
  }
  EXPECT_THAT(names, IsSupersetOf({"gemm output", "gemm grad_weight", "norm backward", "adamw"}));
  EXPECT_EQ(steps, 5);
  // 64 tokens through one layer of 32: qkv, proj, fc1 and fc2; the head of 256 may be part of the loss.
  const double layer = 5 * 2.0 * 64 * 32 * (3 * 32 + 32 + 4 * 32 + 4 * 32), head = 5 * 2.0 * 64 * 32 * 256;
  EXPECT_GE(products, layer);
  EXPECT_LE(products, layer + head);
}

TEST(Profile, TakesThePlaceOfAnEarlierTraceAlone) {
  const TinyRun run;
  const auto profile = [&](const std::string& file) {
    return run.train({"--out", run.file("out"), "--steps", "1", "--resume", "--profile", run.file(file)});
  };
  ASSERT_EQ(profile("trace.json").exit_code, 0);
  EXPECT_EQ(profile("trace.json").exit_code, 0);
  io::write_plainly(run.file("notes.txt"), "precious");
  for (const char* refused : {"notes.txt", "none/trace.json", "out"}) {
    const Outcome outcome = profile(refused);
    EXPECT_EQ(outcome.exit_code, 2) << refused;
    EXPECT_THAT(outcome.error, HasSubstr("--profile: expected a ")) << refused;
  }
  EXPECT_EQ(io::read_plainly(run.file("notes.txt")), "precious");
}

TEST(Profile, NeedsNoFileAndChangesNoBits) {
  const TinyRun run;
  const auto train = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> all = {"--out", run.file(name), "--json", run.file(name + ".jsonl"), "--steps", "6"};
    all.insert(all.end(), more.begin(), more.end());
    return run.train(all);
  };
  const Outcome profiled = train("profiled", {"--profile"}), plain = train("plain", {});
  ASSERT_EQ(profiled.exit_code, 0) << profiled.error;
  EXPECT_THAT(profiled.output, HasSubstr("profile of 3 steps"));
  EXPECT_THAT(plain.output, Not(HasSubstr("profile of")));
  EXPECT_EQ(run.steps("profiled.jsonl"), run.steps("plain.jsonl"));
}

}  // namespace
}  // namespace plimsoll::cli
