// Mistakes that users type, and the answers of the command.
#include <gmock/gmock.h>
#include <unistd.h>

#include <limits>
#include <map>
#include <sstream>

#include "plimsoll/cli/tiny_run_testing.h"

namespace plimsoll::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

void expect_refused(const Outcome& outcome, int exit_code, const std::string& expected) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.error;
  EXPECT_THAT(outcome.error, AllOf(StartsWith("plimsoll: "), HasSubstr(expected)));
  EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << outcome.error;
}

TEST(Usage, MistakesOnTheCommandLineAreOneLineAndExitTwo) {
  const TinyRun run;
  const std::string out = run.file("out");
  struct Mistake {
    std::vector<std::string> arguments;
    std::string expected;
  };
  const std::vector<Mistake> mistakes = {
      {{}, "expected a command"},
      {{"report", "RUN"}, "report: expected Python's command, which has it: python -m plimsoll"},
      {{"trian"}, "trian: unknown command, the nearest is train"},
      {{"reprt"}, "reprt: unknown command, the nearest is report"},
      {{"logprobs", "--prompt", "a"}, "--prompt: unknown option, see plimsoll logprobs --help"},
      {{"convert", "--json", "a"}, "--json: unknown option, see plimsoll convert --help"},
      {{"summarize"}, "summarize: unknown command, see plimsoll --help"},
      {{"train"}, "train: expected --data PATH..."},
      {run.arguments("train", {}), "train: expected --out DIR"},
      {run.arguments("train", {"--out", out, "--recpie", "fp8"}), "--recpie: unknown option, the nearest is --recipe"},
      {run.arguments("train", {"--out", out, "--recipe", "fp9"}), "--recipe: expected fp8"},
      {run.arguments("train", {"--out", out, "--recipe", "{\"name\":"}), "--recipe: "},
      {run.arguments("train", {"--out", out, "--model", "tny"}), "--model: expected tiny"},
      {run.arguments("train", {"--out", out, "--model", "small", "--config-of", "/tmp"}),
       "--config-of: expected no --model, got small"},
      {run.arguments("train", {"--out", out, "--steps", "0"}), "--steps: expected an integer of at least 1, got '0'"},
      {run.arguments("train", {"--out", out, "--steps", "3x"}), "--steps: expected an integer of at least 1, got '3x'"},
      {run.arguments("train", {"--out", out, "--steps", "99999999999999999999"}), "--steps: expected an integer"},
      {run.arguments("train", {"--out", out, "--lr", "nan"}), "--lr: expected a number above 0, got 'nan'"},
      {run.arguments("train", {"--out", out, "--lr", "-1"}), "--lr: expected a number"},
      {run.arguments("train", {"--out", out, "--steps"}), "--steps: expected a value, got none"},
      {run.arguments("train", {"--out", out, "--loss-scale", "0"}),
       "--loss-scale: expected dynamic, auto, none, recipe or a"},
      {run.arguments("train", {"--out", out, "--heads", "3"}), "expected heads that divide dim 32, got 3"},
      {{"train", "--data", "/nowhere", "--out", out}, "--data: expected a file or directory, got '/nowhere'"},
      {run.arguments("train", {"--out", out, "--config", "/nowhere"}), "--config: expected a file or directory"},
      {run.arguments("compare", {"--out", out, "--recipes", "fp32,fp7"}), "--recipes: expected fp"},
      {{"generate", "--checkpoint", "/nowhere"}, "--checkpoint: expected a file or directory"},
      {{"generate"}, "generate: expected --model DIR"},
      {{"generate", "--model", "/tmp", "--checkpoint", "/tmp"}, "generate: expected --model or --checkpoint, got both"},
      {{"generate", "--model", "/tmp", "--tokens", "3", "--max-new-tokens", "4"},
       "generate: expected --tokens or --max-new-tokens, got both"},
      {{"inspect"}, "inspect: expected FILE|DIR"},
      {{"inspect", "/nowhere"}, "FILE|DIR: expected a file or directory"},
      {{"quantize", "--model", "/tmp"}, "quantize: expected --out DIR"},
      {{"quantize", "--model", "/tmp", "--out", out, "--format", "int4"}, "--format: expected fp8"},
      {{"quantize", "--model", "/tmp", "--out", out, "--dtype", "fp8"}, "--dtype: expected fp32, fp16, bf16 or stored"},
      {{"quantize", "--model", "/tmp", "--out", out, "--keep", "a,,b"}, "--keep: expected names, got 'a,,b'"},
      {{"info", "now"}, "info: unexpected argument 'now'"},
      {{"generate", "--model", run.file("data"), "--prompt", "a", "b"}, "generate: unexpected argument 'b'"},
      {{"compare", "/nowhere", "/tmp"}, "DIR DIR: expected a file or directory, got '/nowhere'"},
      {{"compare", "/tmp"}, "compare: expected two directories of models, got 1"},
      {{"compare", "/tmp", "/tmp", "--steps", "3"}, "compare: expected no --steps beside DIR DIR"},
      {{"t5", "score", "now"}, "t5: unexpected argument 'now'"},
      {{"t5", "score", "--model", "/tmp", "--input", "a", "--target", "b", "--beams", "2"},
       "t5 score: expected no --beams, which is of t5 generate"},
      {{"t5", "generate", "--model", "/tmp", "--input", "a", "--target", "b"},
       "t5 generate: expected no --target, which is of t5 score"},
      {{"t5", "generate", "--model", "/tmp", "--input", "a", "--min-new-tokens", "9", "--max-new-tokens", "5"},
       "t5: expected --min-new-tokens of at most --max-new-tokens, got 9 and 5"},
      {{"t5", "generate", "--model", "/tmp", "--input", "a", "--length-penalty", "2"},
       "t5: expected --beams of 2 or more beside --length-penalty, got 1"},
      {{"gauge", "--model", "/tmp", "--out", out, "--batch", "9"}, "gauge: expected --calibrate beside --batch"},
      {{"gauge", "--model", "/tmp", "--out", out, "--step-targets", "9"},
       "gauge: expected --train beside --step-targets"},
      {{"t5", "generate", "--temprature", "0.7"}, "--temprature: unknown option, the nearest is --temperature"},
  };
  for (const Mistake& mistake : mistakes) {
    expect_refused(run_program(mistake.arguments), 2, mistake.expected);
    EXPECT_FALSE(std::filesystem::exists(out)) << mistake.expected;
  }
}

// Every option that is an integer, as the commands' help lists them.
std::vector<std::string> integer_options(const std::string& command) {
  std::vector<std::string> names;
  std::istringstream lines(run_program({command, "--help"}).output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, placeholder;
    words >> name >> placeholder;
    if (name.starts_with("--") && (placeholder == "N" || placeholder == "N,..." || placeholder == "SECONDS")) {
      names.push_back(name);
    }
  }
  return names;
}

// A program that ends by itself or, where it was asked for that much work, goes on until it is stopped. What is refused is
// refused at once, unless the machine is busy.
Outcome run_for_a_while(const std::vector<std::string>& arguments, bool is_refused) {
  return run_program(arguments, [is_refused] { alarm(is_refused ? 300 : 5); });
}

// A Hugging Face directory of a tiny model of bytes.
std::string tiny_directory(const TinyRun& run) {
  io::write_plainly(run.file("shape/config.json"),
                    R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24,
                        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32})");
  const std::string trained = run.file("of_shape"), directory = run.file("directory");
  const Outcome train = run_program({"train", "--config-of", run.file("shape"), "--data", run.file("data"), "--out",
                                     trained, "--steps", "1", "--batch", "1", "--threads", "1"});
  EXPECT_EQ(train.exit_code, 0) << train.error;
  const Outcome convert = run_program({"convert", "--model", trained, "--out", directory});
  EXPECT_EQ(convert.exit_code, 0) << convert.error;
  return directory;
}

TEST(Usage, ExtremeIntegersAreUsedOrRefusedWithOneLineAndNoNumberThatOverflowed) {
  const TinyRun run;
  ASSERT_EQ(run.train({"--out", run.file("trained"), "--steps", "2"}).exit_code, 0);
  const std::string out = run.file("out");
  const std::map<std::string, std::vector<std::string>> commands = {
      {"train", run.arguments("train", {"--out", out, "--steps", "2"})},
      {"compare", run.arguments("compare", {"--out", out, "--steps", "2", "--recipes", "fp32"})},
      {"generate", {"generate", "--checkpoint", run.file("trained"), "--tokens", "2"}},
      {"finetune",
       {"finetune", "--model", tiny_directory(run), "--data", run.file("data"), "--out", out, "--steps", "2",
        "--threads", "1"}},
      {"gauge", {"gauge", "--model", run.file("trained"), "--out", out, "--threads", "1"}},
      {"shard-plan", {"shard-plan", "--model", "tiny", "--tokens-per-second", "300", "--bandwidth", "10"}}};
  size_t count = 0;
  for (const auto& [command, arguments] : commands) {
    std::filesystem::remove_all(out);
    const Outcome usual = run_program(arguments);
    ASSERT_EQ(usual.exit_code, 0) << command << ": " << usual.error;
    for (const std::string& option : integer_options(command)) {
      for (const int64_t value : {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
        std::filesystem::remove_all(out);
        std::vector<std::string> extreme = arguments;
        extreme.insert(extreme.end(), {option, std::to_string(value)});
        const Outcome outcome = run_for_a_while(extreme, /*is_refused=*/value <= 0);
        const std::string label = command + " " + option + " " + std::to_string(value) + ": " + outcome.error;
        ++count;
        EXPECT_THAT(outcome.exit_code, testing::AnyOf(0, 1, 2, 128 + SIGALRM)) << label;
        EXPECT_LE(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << label;
        if (value > 0) {
          EXPECT_THAT(outcome.error, testing::Not(testing::ContainsRegex("-[0-9]"))) << label;
        } else {
          const bool takes_any = command == "generate" && option == "--seed";
          EXPECT_EQ(outcome.exit_code, takes_any ? 0 : 2) << label;
        }
      }
    }
  }
  EXPECT_GT(count, 90u);
}

TEST(Usage, HelpListsTheExitCodes) {
  EXPECT_THAT(run_program({"--help"}).output, HasSubstr("3 done, but a result is Inf or NaN"));
}

TEST(Usage, DataThatCannotServeIsOneLineAndExitOne) {
  const TinyRun run;
  const std::string out = run.file("out");
  io::write_plainly(run.file("empty"), "");
  io::write_plainly(run.file("binary/code.bin"), std::string("\0\1", 2));
  const auto train_on = [&](const char* data) {
    return run_program({"train", "--data", run.file(data), "--out", out});
  };
  expect_refused(train_on("empty"), 1, "data: expected text, got 0 bytes");
  expect_refused(train_on("binary"), 1, "expected a directory with text files");
  expect_refused(run.train({"--context", "100000", "--out", out}), 1, "two windows of context 100000");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Usage, HelpListsEveryOptionWithItsDefault) {
  const Outcome help = run_program({"train", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* row :
       {"--data PATH... (required)", "--steps N [300]", "--recipe NAME [fp8]", "--resume", "--json FILE"}) {
    EXPECT_THAT(help.output, HasSubstr(row));
  }
  EXPECT_THAT(run_program({"mmlu", "--help"}).output, HasSubstr("--dtypes A,B [fp32,fp16]"));
}

TEST(Usage, OptionsThatDoNotGoTogetherAreRefusedBeforeAnythingIsPrinted) {
  const TinyRun run;
  for (const char* command : {"train", "compare"}) {
    const Outcome outcome = run_program(run.arguments(command, {"--out", run.file("out"), "--compress", "fp8"}));
    expect_refused(outcome, 2, "--compress fp8: expected --shard ddp, zero1 or zero2, got none");
    EXPECT_EQ(outcome.output, "");
  }
}

TEST(Usage, ConfigurationFileFillsWhatTheCommandLineLeavesOpen) {
  const TinyRun run;
  io::write_plainly(run.file("config.json"), R"({"steps": 3, "recipe": "bf16", "lr": 0.5, "resume": false})");
  const Outcome outcome = run.train({"--out", run.file("out"), "--config", run.file("config.json"), "--lr", "0.25"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("\"steps\":3"), HasSubstr("\"recipe\":\"bf16\""), HasSubstr("\"lr\":0.25")));
}

TEST(Usage, ListsInAConfigurationFileKeepEveryValue) {
  const TinyRun run;
  io::write_plainly(run.file("config.json"), R"({"recipes": ["fp32", "fp8"], "steps": 2})");
  const Outcome outcome =
      run_program(run.arguments("compare", {"--out", run.file("out"), "--config", run.file("config.json")}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  for (const char* recipe : {"fp32", "fp8"}) {
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(run.file("out")) / recipe)) << recipe;
  }
}

TEST(Usage, MistakesInAConfigurationFileAreNamed) {
  const TinyRun run;
  const auto with = [&](const char* config) {
    io::write_plainly(run.file("config.json"), config);
    return run.train({"--out", run.file("out"), "--config", run.file("config.json")});
  };
  expect_refused(with(R"({"stpes": 3})"), 2, "stpes: unknown option in");
  expect_refused(with(R"({"steps": "many"})"), 2, "steps in the configuration file: expected an integer");
  expect_refused(with(R"({"steps": 1, "steps": 2})"), 1, "expected each key once");
  expect_refused(with(R"({"steps": []})"), 2, "steps in the configuration file: expected an integer");
  expect_refused(with(R"({"steps": [1, 2]})"), 2, "steps in the configuration file: expected an integer");
  expect_refused(with(R"({"resume": []})"), 2, "resume in the configuration file: expected true or false");
  expect_refused(with("steps: 3"), 1, "expected valid JSON");
  expect_refused(with("[]"), 2, "expected a JSON object");
}

}  // namespace
}  // namespace plimsoll::cli
