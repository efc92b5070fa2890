// --watch MODE, of the commands that run a model.
#pragma once

#include "plimsoll/app/json_lines.h"
#include "plimsoll/cli/command.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::cli {

Option watch_option(watch::Mode& mode);

// On stderr, one block; each of its lines goes to `lines`, too. Nothing for a session that is off.
void print_watch(const watch::Session& session, app::JsonLines& lines);

}  // namespace plimsoll::cli
