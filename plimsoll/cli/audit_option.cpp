#include "plimsoll/cli/audit_option.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <system_error>

#include "plimsoll/cli/report_option.h"

namespace plimsoll::cli {
namespace {

// A link that leads nowhere is there, too.
bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

}  // namespace

Option audit_option(std::filesystem::path& path) {
  return {"audit",
          "FILE",
          report_path(path),
          "write the formats, scales and kernel of every product and operator that runs, one JSON object a row, to "
          "a new file or over an earlier report",
          Need::kOptional,
          AcrossRanks::kOwn};
}

AuditFile::AuditFile(const std::filesystem::path& path)
    : path_(path), is_new_(!path.empty() && !is_there(path)), lines_(app::JsonLines::open(path)) {
  if (!path.empty()) recording_ = std::make_unique<Recording>();
}

AuditFile::~AuditFile() {
  if (!is_new_ || has_begun_) return;
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void AuditFile::begin() {
  if (!has_begun_) lines_.clear();
  has_begun_ = true;
}

void AuditFile::write() {
  begin();
  if (recording_ != nullptr) write_audit(recording_->audit, lines_);
}

void write_audit(const watch::Audit& audit, app::JsonLines& lines) {
  std::stringstream json;
  watch::write_json_lines(json, audit);
  for (std::string line; std::getline(json, line);) lines.write(nlohmann::json::parse(line));
}

}  // namespace plimsoll::cli
