#include "plimsoll/cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "plimsoll/app/error.h"

namespace plimsoll::cli {
namespace {

void expect_written(bool is_written) {
  if (!is_written) app::fail("output: cannot write");
}

bool put(std::string_view text) { return std::fwrite(text.data(), 1, text.size(), stdout) == text.size(); }

bool is_control(unsigned char byte) { return (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f; }

}  // namespace

void write_text(std::string_view text) { expect_written(put(text) && std::fflush(stdout) == 0); }

void write_line(std::string_view text) { expect_written(put(text) && std::putchar('\n') != EOF); }

void expect_all_written() { expect_written(std::fflush(stdout) == 0 && std::ferror(stdout) == 0); }

std::string counted(int64_t count, std::string_view one, std::string_view several) {
  if (count == 1) return fmt::format("1 {}", one);
  return several.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, several);
}

std::string loss_text(double loss) { return fmt::format("{:.4f}", std::isnan(loss) ? std::abs(loss) : loss); }

std::string harmless(std::string_view text) {
  if (isatty(STDOUT_FILENO) == 0) return std::string(text);
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F in UTF-8
      shown += fmt::format("\\x{:02x}", next);
      ++i;
    } else if (is_control(byte)) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += text[i];
    }
  }
  return shown;
}

}  // namespace plimsoll::cli
