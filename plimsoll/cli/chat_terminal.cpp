#include "plimsoll/cli/chat_terminal.h"

#include <unistd.h>

#include <iostream>

#include "plimsoll/app/error.h"
#include "plimsoll/app/process/interrupt.h"
#include "plimsoll/cli/output.h"
#include "plimsoll/cli/report_errors.h"

namespace plimsoll::cli {
namespace {

constexpr const char* kGreeting = "Write a message. /reset starts anew, Ctrl-C stops a reply, Ctrl-D ends the chat.\n";

// Whether there was a line.
bool read_line(bool is_terminal, std::string& line) {
  if (is_terminal) write_text("> ");
  if (std::getline(std::cin, line)) return true;
  if (is_terminal) write_text("\n");
  return false;
}

}  // namespace

void run_chat(const Reply& reply, const std::function<void()>& reset) {
  const bool is_terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (is_terminal) write_text(kGreeting);
  for (std::string line; read_line(is_terminal, line);) {
    if (line.empty()) continue;
    if (line == "/reset") {
      reset();
      continue;
    }
    try {
      const app::InterruptScope interrupt;
      const app::WrittenText written = reply(line, [&] { return interrupt.requested(); });
      if (written.end == app::TextEnd::kNotFinite) return;
      if (is_terminal && written.end == app::TextEnd::kLength) write_text("(cut off)\n");
    } catch (const app::UsageError& error) {  // too long a conversation, or no UTF-8
      print_warning(error.what());
    }
  }
}

}  // namespace plimsoll::cli
