#include "plimsoll/cli/audit_option.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace plimsoll::cli {

Option audit_option(std::filesystem::path& path) {
  return {"audit",
          "FILE",
          cli::path(path),
          "write the formats, scales and kernel of every product and operator that runs, one JSON object a row",
          Need::kOptional,
          AcrossRanks::kOwn};
}

AuditFile::AuditFile(const std::filesystem::path& path) : lines_(app::JsonLines::create(path)) {
  if (!path.empty()) recording_ = std::make_unique<Recording>();
}

void AuditFile::write() {
  if (recording_ != nullptr) write_audit(recording_->audit, lines_);
}

void write_audit(const watch::Audit& audit, app::JsonLines& lines) {
  std::stringstream json;
  watch::write_json_lines(json, audit);
  for (std::string line; std::getline(json, line);) lines.write(nlohmann::json::parse(line));
}

}  // namespace plimsoll::cli
