// A chat in a terminal, or of lines from a file or pipe.
#pragma once

#include <functional>
#include <string>

#include "plimsoll/app/text/text_writer.h"

namespace plimsoll::cli {

// Each line of standard input that is not empty is a message, until its end; the line /reset calls `reset`. Ctrl-C
// during a reply ends that reply, otherwise the program. A reply that is not finite ends the chat.
using Reply = std::function<app::WrittenText(const std::string& message, const std::function<bool()>& interrupted)>;
void run_chat(const Reply& reply, const std::function<void()>& reset);

}  // namespace plimsoll::cli
