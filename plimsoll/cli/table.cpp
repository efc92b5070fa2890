#include "plimsoll/cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace plimsoll::cli {

Table::Table(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void Table::add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

std::string Table::text() const {
  std::vector<size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  }
  std::string result;
  for (const auto& row : rows_) {
    result += fmt::format("{:<{}}", row[0], widths[0]);
    for (size_t column = 1; column < row.size(); ++column)
      result += fmt::format("  {:>{}}", row[column], widths[column]);
    result += '\n';
  }
  return result;
}

}  // namespace plimsoll::cli
