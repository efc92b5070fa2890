// Reports of a session, for people and for machines.
#pragma once

#include <ostream>
#include <string>

#include "plimsoll/watch/session.h"

namespace plimsoll::watch {

std::string describe(const Incident& incident);

// One block: the incidents, the first one in full, then the results with the least headroom.
void write_text(std::ostream& out, const Session& session);

// One JSON object a line: the slots as write_json_lines(slots) writes them, then {"incident": path, ...} for each.
void write_json_lines(std::ostream& out, const Session& session);

}  // namespace plimsoll::watch
