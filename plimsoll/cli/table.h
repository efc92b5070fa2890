// Text in columns.
#pragma once

#include <string>
#include <vector>

namespace plimsoll::cli {

class Table {
 public:
  explicit Table(std::vector<std::string> header);
  // As many cells as the header has.
  void add(std::vector<std::string> row);
  // One line a row; the first column to the left, the others to the right.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace plimsoll::cli
