#include "plimsoll/cli/report_option.h"

#include <unistd.h>

#include <system_error>
#include <utility>
#include <vector>

#include "plimsoll/app/error.h"
#include "plimsoll/app/report_file.h"

namespace plimsoll::cli {

namespace {

void expect_free(const std::string& label, const std::filesystem::path& target) {
  if (app::is_free_for_report(target)) return;
  app::refuse("{}: expected a new file or an earlier report, got {}, which is neither", label, target.native());
}

void expect_writable(const std::string& label, const std::filesystem::path& target) {
  std::error_code ignored;
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  if (!std::filesystem::is_directory(target, ignored) && ::access(folder.c_str(), W_OK | X_OK) == 0) return;
  app::refuse("{}: expected a file in a directory that can be written to, got {}", label, target.native());
}

}  // namespace

Field report_path(std::filesystem::path& target) {
  Field field = path(target);
  field.set = [&target, set = std::move(field.set)](const std::string& label, const std::vector<std::string>& typed) {
    set(label, typed);
    expect_free(label, target);
  };
  return field;
}

Field optional_report_path(std::optional<std::filesystem::path>& target) {
  Field field = optional_path(target);
  field.set = [&target, set = std::move(field.set)](const std::string& label, const std::vector<std::string>& typed) {
    set(label, typed);
    if (!target || target->empty()) return;
    expect_free(label, *target);
    expect_writable(label, *target);
  };
  return field;
}

Option report_option(std::filesystem::path& target, const std::string& what) {
  return {"json", "FILE", report_path(target), "write " + what + " to FILE, a new one or an earlier report"};
}

}  // namespace plimsoll::cli
