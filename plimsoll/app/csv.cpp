#include "plimsoll/app/csv.h"

#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "plimsoll/app/error.h"

namespace plimsoll::app {
namespace {

class CsvReader {
 public:
  explicit CsvReader(std::string_view text) : text_(text) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  // False: a quote does not end.
  bool read() {
    while (!text_.empty()) {
      const char next = take();
      if (next == '"' && field_.empty() && !was_quoted_) {
        if (!read_quoted()) return false;
      } else if (next == ',') {
        end_field();
      } else if (next == '\n') {
        end_row();
      } else if (next != '\r' || !text_.starts_with('\n')) {
        field_ += next;
      }
    }
    end_row();
    return true;
  }

  std::vector<std::vector<std::string>> rows;

 private:
  char take() {
    const char first = text_.front();
    text_.remove_prefix(1);
    return first;
  }
  bool read_quoted() {
    was_quoted_ = true;
    while (!text_.empty()) {
      const char next = take();
      if (next == '"' && !text_.starts_with('"')) return true;
      if (next == '"') take();
      field_ += next;
    }
    return false;
  }
  void end_field() {
    row_.push_back(std::exchange(field_, {}));
    was_quoted_ = false;
  }
  void end_row() {
    const bool is_empty = row_.empty() && field_.empty() && !was_quoted_;
    if (is_empty) return;
    end_field();
    rows.push_back(std::exchange(row_, {}));
  }

  std::string_view text_;
  std::string field_;
  bool was_quoted_ = false;  // the field under way
  std::vector<std::string> row_;
};

}  // namespace

std::vector<std::vector<std::string>> read_csv(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail("{}: cannot read", file.native());
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  CsvReader reader(text);
  if (!reader.read()) fail("{}: row {}: expected a closing quote, got the end", file.native(), reader.rows.size() + 1);
  return std::move(reader.rows);
}

}  // namespace plimsoll::app
