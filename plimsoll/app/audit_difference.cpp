#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "plimsoll/app/audit.h"
#include "plimsoll/app/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/line_reader.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

// Rows of one product or operator of a layer in one run, in their order.
using RowsByPlace = std::vector<std::pair<std::string, std::vector<json>>>;

std::vector<json>& rows_at(RowsByPlace& all, const std::string& place) {
  for (auto& [name, rows] : all) {
    if (name == place) return rows;
  }
  return all.emplace_back(place, std::vector<json>()).second;
}

bool is_forward_product(const std::string& op) { return op == "gemm output" || op == "gemm low rank"; }

RowsByPlace read_audit(const std::filesystem::path& path, AuditedRows which) {
  io::LineReader file(path);
  RowsByPlace all;
  for (std::string line; file.next(line);) {
    json row = io::parse_json(line, path.native());
    for (const char* member : {"layer", "op", "operands", "output", "kernel", "decided"}) {
      if (!row.is_object() || !row.contains(member)) {
        fail("{}: expected lines of an audit, each with a member {}, got another file", path.native(), member);
      }
    }
    for (const char* member : {"calls", "operations", "share"}) row.erase(member);
    const auto text = [&](const char* member) { return row[member].is_string() ? row[member].get<std::string>() : ""; };
    const bool forward_products = which == AuditedRows::kForwardProducts;
    if (forward_products && !is_forward_product(text("op"))) continue;
    const auto before = [&](const char* member, const char* separator) {
      const std::string words = row.contains(member) ? text(member) : "";
      return words.empty() ? words : words + separator;
    };
    const std::string place = before("run", ": ") + before("layer", " ") + text("op");
    std::vector<json>& rows = rows_at(all, place);
    // A product may apply the activation that follows it, or leave it to training, which keeps what it reads.
    if (forward_products) row.erase("output");
    if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(std::move(row));
  }
  if (all.empty()) {
    fail("{}: expected lines of an audit{}, got none", path.native(),
         which == AuditedRows::kAll ? "" : " with forward products");
  }
  return all;
}

std::string value_text(const json& value) {
  if (value.is_string()) return value.get<std::string>().empty() ? "nothing" : value.get<std::string>();
  return value.is_null() ? "nothing" : value.dump();
}

// "e4m3, tensor, delayed, fp32".
std::string operand_text(const json& operand) {
  if (!operand.is_object()) return value_text(operand);
  std::vector<std::string> words;
  for (const char* member : {"format", "values_of", "granularity", "source", "scale"}) {
    if (operand.contains(member)) words.push_back(value_text(operand[member]));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

// Operands by their name, the other members by theirs.
std::map<std::string, std::string> members_of(const json& row) {
  std::map<std::string, std::string> members;
  for (const auto& [name, value] : row.items()) {
    if (name != "operands" || !value.is_array()) {
      members[name] = value_text(value);
      continue;
    }
    for (const json& operand : value) {
      members[operand.is_object() ? value_text(operand.value("name", json())) : "operand"] = operand_text(operand);
    }
  }
  return members;
}

void compare_rows(const std::string& place, const json& first, const json& second, std::vector<std::string>& lines) {
  std::map<std::string, std::string> a = members_of(first), b = members_of(second);
  for (const auto& [name, value] : b) a.try_emplace(name, "nothing");
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    const std::string got = other == b.end() ? "nothing" : other->second;
    if (got != value) lines.push_back(fmt::format("{}: {}: {} -> {}", place, name, value, got));
  }
}

// Equal rows are taken out; the others are compared in their order.
void compare_place(const std::string& place, std::vector<json> first, std::vector<json> second,
                   std::vector<std::string>& lines) {
  std::erase_if(first, [&](const json& row) {
    const auto same = std::find(second.begin(), second.end(), row);
    if (same == second.end()) return false;
    second.erase(same);
    return true;
  });
  for (size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i >= first.size()) {
      lines.push_back(fmt::format("{}: only in the second: {}", place, second[i].dump()));
    } else if (i >= second.size()) {
      lines.push_back(fmt::format("{}: only in the first: {}", place, first[i].dump()));
    } else {
      compare_rows(place, first[i], second[i], lines);
    }
  }
}

}  // namespace

std::vector<std::string> audit_differences(const std::filesystem::path& first, const std::filesystem::path& second,
                                           AuditedRows which) {
  RowsByPlace a = read_audit(first, which), b = read_audit(second, which);
  for (const auto& [place, rows] : b) rows_at(a, place);
  std::vector<std::string> lines;
  for (const auto& [place, rows] : a) compare_place(place, rows, rows_at(b, place), lines);
  return lines;
}

}  // namespace plimsoll::app
