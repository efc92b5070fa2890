#include "plimsoll/cli/output.h"

#include <cstdio>

#include "plimsoll/app/error.h"

namespace plimsoll::cli {
namespace {

void expect_written(bool is_written) {
  if (!is_written) app::fail("output: cannot write");
}

bool put(std::string_view text) { return std::fwrite(text.data(), 1, text.size(), stdout) == text.size(); }

}  // namespace

void write_text(std::string_view text) { expect_written(put(text) && std::fflush(stdout) == 0); }

void write_line(std::string_view text) { expect_written(put(text) && std::putchar('\n') != EOF); }

}  // namespace plimsoll::cli
