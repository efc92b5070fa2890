#include "plimsoll/cli/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <map>

#include "plimsoll/app/error.h"
#include "plimsoll/cli/report_errors.h"
#include "plimsoll/io/json.h"
#include "plimsoll/recipe/names.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;
using Values = std::vector<std::string>;

bool is_positional(const Option& option) { return option.need == Need::kPositional || option.need == Need::kAlone; }

std::string label_of(const Option& option) { return is_positional(option) ? option.placeholder : "--" + option.name; }

std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

Values texts_of(const json& array) {
  Values texts;
  std::transform(array.begin(), array.end(), std::back_inserter(texts), text_of);
  return texts;
}

std::string with_commas(const json& array) { return fmt::format("{}", fmt::join(texts_of(array), ",")); }

std::string default_text(const Option& option) {
  const json value = option.field.get();
  if (value.is_null() || value.is_boolean() || (value.is_array() && value.empty())) return "";
  return " [" + (value.is_array() ? with_commas(value) : text_of(value)) + "]";
}

std::string help_text(const Option& option, const std::vector<Option>& options) {
  const std::string text = option.placeholder + default_text(option);
  if (option.need != Need::kRequired) return text;
  const auto alone =
      std::find_if(options.begin(), options.end(), [](const Option& o) { return o.need == Need::kAlone; });
  return text + (alone == options.end() ? " (required)" : fmt::format(" (required without {})", alone->placeholder));
}

// Commands and options of `python -m plimsoll` that this program does not have.
constexpr std::string_view kReport = "report";
constexpr std::array kOfPython{kReport, std::string_view("--methods")};

// Throws UsageError that names the nearest of `known`, unless none is near; `all` lists them.
[[noreturn]] void refuse_unknown(std::string_view kind, const std::string& typed, const std::vector<std::string>& known,
                                 const std::string& all) {
  if (std::find(kOfPython.begin(), kOfPython.end(), typed) != kOfPython.end()) {
    app::refuse("{}: expected Python's command, which has it: python -m plimsoll", typed);
  }
  const auto nearest = std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) {
    return recipe::edit_distance(typed, a) < recipe::edit_distance(typed, b);
  });
  constexpr int kMostMistakes = 3;
  if (recipe::edit_distance(typed, *nearest) > kMostMistakes) app::refuse("{}: unknown {}, see {}", typed, kind, all);
  app::refuse("{}: unknown {}, the nearest is {}", typed, kind, *nearest);
}

// A command with what CLI11 found for it.
class ParsedCommand {
 public:
  ParsedCommand(CLI::App& program, const Command& command)
      : command_(command),
        parser_(program.add_subcommand(command.name, command.summary)),
        typed_(command.options.size()) {
    parser_->allow_extras();  // reported below, with the nearest name
    for (size_t i = 0; i < command.options.size(); ++i) add(command.options[i], typed_[i]);
  }

  bool chosen() const { return parser_->parsed(); }

  int run() {
    refuse_extras();
    const json config = read_config();
    for (size_t i = 0; i < command_.options.size(); ++i) fill(command_.options[i], typed_[i], config);
    if (!check_alone()) {
      for (const Option& option : command_.options) check_need(option);
    }
    return command_.run(configuration(command_.options));
  }

 private:
  void add(const Option& option, Values& values) {
    const std::string name = is_positional(option) ? option.name : "--" + option.name;
    if (option.field.values == Field::Values::kSwitch) {
      given_[option.name] = parser_->add_flag(name, option.help);
      return;
    }
    CLI::Option* added =
        parser_->add_option(name, values, option.help)->option_text(help_text(option, command_.options));
    if (option.field.values == Field::Values::kOne) {
      if (option.need == Need::kPositional) {
        added->expected(1, CLI::detail::expected_max_vector_size);  // too many are refused below
      } else {
        added->expected(1)->take_last()->allow_extra_args(false);
      }
    } else if (option.field.values == Field::Values::kOptional) {
      added->expected(0, 1)->take_last()->allow_extra_args(false);
    } else {
      added->expected(1, CLI::detail::expected_max_vector_size);
    }
    given_[option.name] = added;
  }

  void refuse_extras() const {
    std::vector<std::string> extras = parser_->remaining();
    for (size_t i = 0; i < command_.options.size(); ++i) {
      const Option& option = command_.options[i];
      const bool takes_one = option.need == Need::kPositional && option.field.values == Field::Values::kOne;
      if (takes_one && typed_[i].size() > 1) extras.insert(extras.end(), typed_[i].begin() + 1, typed_[i].end());
    }
    if (extras.empty()) return;
    const auto dashed =
        std::find_if(extras.begin(), extras.end(), [](const auto& text) { return text.starts_with('-'); });
    if (dashed == extras.end()) app::refuse("{}: unexpected argument '{}'", command_.name, extras.front());
    std::vector<std::string> known{"--help"};
    for (const Option& option : command_.options) {
      if (!is_positional(option)) known.push_back("--" + option.name);
    }
    refuse_unknown("option", dashed->substr(0, dashed->find('=')), known, help());
  }

  json read_config() const {
    for (size_t i = 0; i < command_.options.size(); ++i) {
      const Option& option = command_.options[i];
      if (option.name != kConfigOption || given_.at(option.name)->count() == 0) continue;
      option.field.set(label_of(option), typed_[i]);
      const std::string& file = typed_[i].back();
      json config = io::read_json(file);
      if (!config.is_object()) app::refuse("{}: expected a JSON object {{option: value}}", file);
      check_names(file, config);
      return config;
    }
    return json::object();
  }

  std::string help() const { return fmt::format("plimsoll {} --help", command_.name); }

  void check_names(const std::string& file, const json& config) const {
    std::vector<std::string> known;
    for (const Option& option : command_.options) known.push_back(option.name);
    for (const auto& [name, value] : config.items()) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      refuse_unknown("option in " + file, name, known, help());
    }
  }

  void fill(const Option& option, const Values& typed, const json& config) const {
    if (given_.at(option.name)->count() > 0) {
      option.field.set(label_of(option), typed);
    } else if (config.contains(option.name)) {
      const std::string label = option.name + " in the configuration file";
      option.field.set(label, values_of(option.field, config.at(option.name)));
    }
  }

  // Whether an option that stands alone was typed. Refuses others beside it.
  bool check_alone() const {
    const auto typed = [&](const Option& option) { return given_.at(option.name)->count() > 0; };
    const auto alone = std::find_if(command_.options.begin(), command_.options.end(),
                                    [&](const Option& option) { return option.need == Need::kAlone && typed(option); });
    if (alone == command_.options.end()) return false;
    for (const Option& option : command_.options) {
      if (!typed(option) || option.name == alone->name || option.name == "json") continue;
      app::refuse("{}: expected no {} beside {}", command_.name, label_of(option), alone->placeholder);
    }
    return true;
  }

  // Another option may have set the same variable.
  void check_need(const Option& option) const {
    const bool is_needed = option.need == Need::kRequired || option.need == Need::kPositional;
    if (is_needed && option.field.get().is_null()) {
      const std::string name = option.need == Need::kPositional ? "" : label_of(option) + " ";
      app::refuse("{}: expected {}{}", command_.name, name, option.placeholder);
    }
  }

  // An array for an option of one value is its values with commas, as they are typed: none of them may get lost.
  static Values values_of(const Field& field, const json& value) {
    if (!value.is_array()) return {text_of(value)};
    if (field.values == Field::Values::kMany) return texts_of(value);
    return {with_commas(value)};
  }

  const Command& command_;
  CLI::App* parser_;
  std::vector<Values> typed_;
  std::map<std::string, CLI::Option*> given_;
};

int parse_and_run(int argc, const char* const* argv, const std::vector<Command>& commands) {
  CLI::App program("Trains and runs transformers in FP8, FP16 and BF16, and says how safe the numbers are.",
                   "plimsoll");
  program.allow_extras();
  program.require_subcommand(0, 1);  // behind a command, another one's name is an argument: t5 generate
  program.set_version_flag("--version", PLIMSOLL_VERSION);
  program.footer(
      "python -m plimsoll has two more: report, which draws a page about runs, and compare --methods\n"
      "Exit codes: 0 done; 1 failed; 2 a mistake in what was typed; 3 done, but a result is Inf or NaN; 130 "
      "interrupted");
  std::vector<ParsedCommand> parsed;
  parsed.reserve(commands.size());
  for (const Command& command : commands) parsed.emplace_back(program, command);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return program.exit(request);
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();
    const bool has_no_value = text.ends_with(" missing");  // "--steps: 1 required INT missing"
    throw app::UsageError(has_no_value ? text.substr(0, text.find(':')) + ": expected a value, got none" : text);
  } catch (const CLI::ParseError& error) {
    throw app::UsageError(error.what());
  }
  for (ParsedCommand& command : parsed) {
    if (command.chosen()) return command.run();
  }
  if (const auto extras = program.remaining(); !extras.empty()) {
    std::vector<std::string> names;
    for (const Command& command : commands) names.push_back(command.name);
    names.emplace_back(kReport);
    refuse_unknown("command", extras.front(), names, "plimsoll --help");
  }
  throw app::UsageError("expected a command (see plimsoll --help)");
}

}  // namespace

json configuration(const std::vector<Option>& options) {
  json result = json::object();
  for (const Option& option : options) {
    if (json value = option.field.get(); !value.is_null()) result[option.name] = std::move(value);
  }
  return result;
}

nlohmann::ordered_json common_values(const std::vector<Option>& options) {
  nlohmann::ordered_json result = nlohmann::ordered_json::object();
  for (const Option& option : options) {
    if (option.across_ranks == AcrossRanks::kSameValue) result[option.name] = option.field.get();
  }
  return result;
}

int run_command_line(int argc, const char* const* argv, const std::vector<Command>& commands) {
  return report_errors([&] { return parse_and_run(argc, argv, commands); });
}

}  // namespace plimsoll::cli
