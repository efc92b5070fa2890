#include "plimsoll/cli/watch_option.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plimsoll/watch/report.h"

namespace plimsoll::cli {

Option watch_option(watch::Mode& mode) {
  return {"watch", "MODE",
          choice(
              {watch::kModeNames.begin(), watch::kModeNames.end()},
              [&mode](size_t index) { mode = static_cast<watch::Mode>(index); },
              [&mode] { return nlohmann::json(watch::name(mode)); }),
          "report what overflows, and where: off, guard, count, trap or shadow"};
}

void print_watch(const watch::Session& session, app::JsonLines& lines) {
  if (session.mode() == watch::Mode::kOff) return;
  std::ostringstream text;
  watch::write_text(text, session);
  std::fputs(text.str().c_str(), stderr);
  std::stringstream json;
  watch::write_json_lines(json, session);
  for (std::string line; std::getline(json, line);) lines.write(nlohmann::json::parse(line));
}

}  // namespace plimsoll::cli
