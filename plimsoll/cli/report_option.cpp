#include "plimsoll/cli/report_option.h"

#include <utility>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/app/report_file.h"

namespace plimsoll::cli {

Field report_path(std::filesystem::path& target) {
  Field field = path(target);
  field.set = [&target, set = std::move(field.set)](const std::string& label, const std::vector<std::string>& typed) {
    set(label, typed);
    if (app::is_free_for_report(target)) return;
    app::refuse("{}: expected a new file or an earlier report, got {}, which is neither", label, target.native());
  };
  return field;
}

Option report_option(std::filesystem::path& target, const std::string& what) {
  return {"json", "FILE", report_path(target), "write " + what + " to FILE, a new one or an earlier report"};
}

}  // namespace plimsoll::cli
