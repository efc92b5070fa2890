#include "plimsoll/app/csv.h"

#include <csv.h>

#include <string_view>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/io/regular_file.h"

namespace plimsoll::app {
namespace {

using Row = std::vector<std::string>;

class CsvReader {
 public:
  CsvReader() {
    if (csv_init(&parser_, 0) != 0) fail("csv: cannot start the parser");
    csv_set_space_func(&parser_, [](unsigned char) { return 0; });  // spaces belong to fields
  }
  ~CsvReader() { csv_free(&parser_); }
  CsvReader(const CsvReader&) = delete;
  CsvReader& operator=(const CsvReader&) = delete;

  // False: a quote does not end.
  bool read(std::string_view text) {
    if (csv_parse(&parser_, text.data(), text.size(), &end_field, &end_row, this) != text.size()) return false;
    csv_set_opts(&parser_, CSV_STRICT | CSV_STRICT_FINI);  // of the end alone: a quote inside a plain field is text
    return csv_fini(&parser_, &end_field, &end_row, this) == 0;
  }

  std::vector<Row> rows;

 private:
  static void end_field(void* text, size_t size, void* reader) {
    static_cast<CsvReader*>(reader)->row_.emplace_back(static_cast<const char*>(text), size);
  }
  static void end_row(int, void* reader) {
    auto& self = *static_cast<CsvReader*>(reader);
    self.rows.push_back(std::exchange(self.row_, {}));
  }

  csv_parser parser_;
  Row row_;  // under way
};

}  // namespace

std::vector<Row> read_csv(const std::filesystem::path& file) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 26;  // MMLU's largest file has 2 MB
  const std::string bytes = io::read_file(file, kMaxBytes);
  std::string_view text = bytes;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  CsvReader reader;
  if (!reader.read(text)) {
    fail("{}: row {}: expected a closing quote, got the end", file.native(), reader.rows.size() + 1);
  }
  return std::move(reader.rows);
}

}  // namespace plimsoll::app
