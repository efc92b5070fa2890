#include "plimsoll/watch/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace plimsoll::watch {
namespace {

using nlohmann::ordered_json;

constexpr size_t kWorst = 10;  // slots in the text

std::string bits_text(double headroom_bits) {
  return std::isnan(headroom_bits) ? "not finite" : fmt::format("{:+.1f} bits", headroom_bits);
}

std::string facts_text(const TensorFacts& facts) {
  std::string text = fmt::format("{} [{}] {}, amax {:.6g}", facts.name, fmt::join(facts.shape, ", "),
                                 format::info(facts.format).name, facts.amax);
  if (facts.at_place) text += fmt::format(", there {:.6g}", *facts.at_place);
  return text;
}

// A number that is not finite is written as null; amaxes are, so they are words.
ordered_json number(float amax) {
  if (std::isfinite(amax)) return amax;
  return std::isnan(amax) ? "nan" : "inf";
}

ordered_json facts_json(const TensorFacts& facts) {
  ordered_json json = {{"name", facts.name},
                       {"shape", facts.shape},
                       {"format", format::info(facts.format).name},
                       {"amax", number(facts.amax)}};
  if (facts.at_place) json["at_place"] = *facts.at_place;
  return json;
}

ordered_json replay_json(const Replay& replay) {
  return {{"amax", number(replay.amax)},
          {"headroom_bits", replay.headroom_bits},
          {"relative_error", replay.relative_error}};
}

ordered_json incident_json(const Incident& incident) {
  ordered_json json = {{"incident", incident.path},
                       {"op", incident.op},
                       {"call", incident.call},
                       {"harm", name(incident.harm)},
                       {"row", incident.row},
                       {"column", incident.column},
                       {"token", incident.token},
                       {"bad_elements", incident.bad_elements},
                       {"result", facts_json(incident.result)},
                       {"operands", ordered_json::array()},
                       {"consumers", ordered_json::array()},
                       {"before", ordered_json::array()},
                       {"instruction", incident.instruction},
                       {"backtrace", incident.backtrace}};
  for (const TensorFacts& operand : incident.operands) json["operands"].push_back(facts_json(operand));
  for (const Consumer& consumer : incident.consumers) {
    json["consumers"].push_back({{"path", consumer.path}, {"harm", name(consumer.harm)}});
  }
  for (const Step& step : incident.before) {
    json["before"].push_back({{"path", step.path}, {"amax", number(step.amax)}, {"headroom_bits", step.headroom_bits}});
  }
  if (incident.value) json["value"] = *incident.value;
  if (const auto& term = incident.largest_term) {
    json["largest_term"] = {{"index", term->index}, {"a", term->a}, {"b", term->b}, {"product", term->product()}};
  }
  if (incident.replay) json["replay"] = replay_json(*incident.replay);
  for (const WindowStep& step : incident.window) {
    json["window"].push_back({{"path", step.path}, {"amax", number(step.amax)}, {"replay", replay_json(step.replay)}});
  }
  return json;
}

std::string replay_text(const Replay& replay) {
  return fmt::format("amax {:.6g}, headroom {}, relative error of the finite ones {:.2g}", replay.amax,
                     bits_text(replay.headroom_bits), replay.relative_error);
}

// Each once, with how often.
std::string consumers_text(const std::vector<Consumer>& consumers) {
  std::vector<std::pair<std::string, int>> lines;
  for (const Consumer& consumer : consumers) {
    std::string line = fmt::format("  then     {}: {}", consumer.path, name(consumer.harm));
    const auto known = std::find_if(lines.begin(), lines.end(), [&](const auto& each) { return each.first == line; });
    if (known == lines.end()) {
      lines.emplace_back(std::move(line), 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [line, times] : lines) {
    text += times == 1 ? fmt::format("{}\n", line) : fmt::format("{}, {} times\n", line, times);
  }
  return text;
}

// A line for each frame whose function is known, and one for each run of offsets in a file.
std::string frames_text(const std::vector<std::string>& frames) {
  std::string text, run, offsets;
  const auto end_run = [&] {
    if (!offsets.empty()) text += fmt::format("  called   {}: addr2line -Cfpe {}{}\n", run, run, offsets);
    offsets.clear();
  };
  for (const std::string& frame : frames) {
    const size_t plus = frame.find('+');
    if (plus == frame.npos || frame.find(", ") != frame.npos) {
      end_run();
      text += fmt::format("  called   {}\n", frame);
      continue;
    }
    if (frame.substr(0, plus) != run) end_run();
    run = frame.substr(0, plus);
    offsets += fmt::format(" {}", std::string_view(frame).substr(plus + 1));
  }
  end_run();
  return text;
}

}  // namespace

std::string describe(const Incident& incident) {
  std::string text = fmt::format("{}: {}, call {}\n", incident.path, incident.op, incident.call);
  text += fmt::format("  first at row {}, column {} (token {}); {} elements; {}\n", incident.row, incident.column,
                      incident.token, incident.bad_elements, name(incident.harm));
  text += fmt::format("  result   {}\n", facts_text(incident.result));
  for (const TensorFacts& operand : incident.operands) text += fmt::format("  operand  {}\n", facts_text(operand));
  if (incident.value) text += fmt::format("  the value there is {:.6g}\n", *incident.value);
  if (const auto& term = incident.largest_term) {
    text += fmt::format("  largest term of its sum: {:.6g} = {:.6g} * {:.6g}, at {}\n", term->product(), term->a,
                        term->b, term->index);
  }
  if (incident.replay) text += fmt::format("  again in fp32: {}\n", replay_text(*incident.replay));
  for (const WindowStep& step : incident.window) {
    text +=
        fmt::format("  window   {}: amax {:.6g}; all in fp32: {}\n", step.path, step.amax, replay_text(step.replay));
  }
  if (!incident.instruction.empty()) text += fmt::format("  overflowed at {}\n", incident.instruction);
  for (const Step& step : incident.before) {
    text += fmt::format("  before   {}: amax {:.6g}, {}\n", step.path, step.amax, bits_text(step.headroom_bits));
  }
  return text + consumers_text(incident.consumers) + frames_text(incident.backtrace);
}

void write_text(std::ostream& out, const Session& session) {
  const std::vector<Incident> incidents = session.incidents().all();
  const std::vector<Record> warnings = session.warnings();
  const auto not_finite = static_cast<size_t>(
      std::count_if(warnings.begin(), warnings.end(), [](const Record& record) { return record.non_finite > 0; }));
  out << fmt::format("watch {}: {} made Inf or NaN, {} not finite, {} more with less than {:g} bits of headroom\n",
                     name(session.mode()), incidents.size(), not_finite, warnings.size() - not_finite,
                     session.warn_bits());
  for (const Incident& incident : incidents) out << describe(incident);
  const std::vector<Record> worst = session.slots().worst(kWorst);
  for (const Record& record : warnings.empty() ? worst : warnings) {
    out << fmt::format("{:<12} {} {}", bits_text(record.headroom_bits), record.name, format::info(record.format).name);
    if (!std::isnan(record.headroom_bits)) out << fmt::format(" amax {:.6g}", record.amax);
    if (record.non_finite > 0) {
      out << fmt::format(", not finite in {} (call {})", record.non_finite, record.first_non_finite_call);
    }
    if (const Counts& counts = record.counts; counts.elements > 0) {
      out << fmt::format(", of {} overflowed {}, flushed {}, subnormal {} ({:.2g} of the mass)", counts.elements,
                         counts.overflowed, counts.flushed, counts.subnormal, counts.underflow_mass_share());
    }
    out << '\n';
  }
}

void write_json_lines(std::ostream& out, const Session& session) {
  write_json_lines(out, session.slots().records());
  for (const Incident& incident : session.incidents().all()) out << incident_json(incident).dump() << '\n';
}

}  // namespace plimsoll::watch
