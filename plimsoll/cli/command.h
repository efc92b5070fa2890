// A sub-command as a table: one row per option drives parsing, help, the echoed configuration and the configuration
// file.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plimsoll/cli/field.h"

namespace plimsoll::cli {

enum class Need : uint8_t {
  kOptional,
  kRequired,
  kPositional,  // and required
  kAlone,       // positional; where it is typed, no other is needed, and none but --json taken
};

// Agreement on an option that the processes of one run need: on its value, on the contents of the files that it names,
// or none, because each process may have its own.
enum class AcrossRanks : uint8_t { kSameValue, kSameContents, kOwn };

struct Option {
  std::string name;         // "batch" is typed --batch
  std::string placeholder;  // of the value, in the help; empty for a switch
  Field field;              // the variable with its default, and the check
  std::string help;
  Need need = Need::kOptional;
  AcrossRanks across_ranks = AcrossRanks::kSameValue;
};

struct Command {
  std::string name;
  std::string summary;
  std::vector<Option> options;
  // Called when the options are filled; returns the exit code.
  std::function<int(const nlohmann::json& configuration)> run;
};

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotFinite = 3;      // all was done, and a result is Inf or NaN
inline constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as shells count

// {"batch": 16, ...}: the values in force, of the options that have one.
nlohmann::json configuration(const std::vector<Option>& options);

// The values of the options that all ranks must have in common, in the table's order; null where there is none.
nlohmann::ordered_json common_values(const std::vector<Option>& options);

}  // namespace plimsoll::cli
