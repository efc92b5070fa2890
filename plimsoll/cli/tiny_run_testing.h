// For tests: text and a model that train in a second.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "plimsoll/cli/program_testing.h"

namespace plimsoll::cli {

class TinyRun {
 public:
  TinyRun() {
    std::string text;
    for (int i = 0; i < 600; ++i) text += "line " + std::to_string(i * i % 97) + " of the text\n";
    io::write_plainly(files_ / "data/text.txt", text);
  }

  std::filesystem::path file(const std::string& name) const { return files_ / name; }

  // `command` on the tiny model, then `rest`; what stands twice counts the second time.
  std::vector<std::string> arguments(const std::string& command, const std::vector<std::string>& rest) const {
    std::vector<std::string> all = {command, "--data",    file("data"), "--layers",     "1",  "--dim",
                                    "32",    "--heads",   "2",          "--context",    "16", "--batch",
                                    "4",     "--warmup",  "2",          "--eval-every", "50", "--eval-windows",
                                    "8",     "--threads", "1"};
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }

  // Options of 300 steps that were never disturbed, and of as many that the caller disturbs.
  std::vector<std::string> whole_run(const std::string& recipe) const { return long_run("whole", recipe); }
  std::vector<std::string> cut_run(const std::string& recipe) const { return long_run("cut", recipe); }

  Outcome train(const std::vector<std::string>& rest) const { return run_program(arguments("train", rest)); }

  // Records that a run logged of each step, timing left out.
  std::map<int64_t, nlohmann::json> steps(const std::string& name) const {
    std::map<int64_t, nlohmann::json> result;
    std::istringstream lines(io::read_plainly(file(name)));
    for (std::string line; std::getline(lines, line);) {
      auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_object() || !json.contains("step")) continue;
      for (const char* time : {"tokens_per_s", "cpu_s"}) json.erase(time);
      result[json["step"].get<int64_t>()] = json;
    }
    return result;
  }

  // Whether the log of a run holds that many lines.
  bool has_lines(const std::string& name, int64_t count) const {
    if (!std::filesystem::exists(file(name))) return false;
    const std::string text = io::read_plainly(file(name));
    return std::count(text.begin(), text.end(), '\n') >= count;
  }

  // Waits, up to five minutes, until the log of a run that goes on for ever holds that many steps.
  void wait_for_steps(const std::string& name, size_t count) const {
    for (int i = 0; i < 150'000 && steps(name).size() < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

 private:
  std::vector<std::string> long_run(const std::string& name, const std::string& recipe) const {
    return {"--out", file(name), "--json", file(name + ".jsonl"), "--steps", "300", "--save-every",
            "20",    "--recipe", recipe};
  }

  io::TemporaryDirectory files_;
};

inline std::vector<std::string> and_also(std::vector<std::string> arguments, const std::string& more) {
  arguments.push_back(more);
  return arguments;
}

}  // namespace plimsoll::cli
