// --audit FILE, of the commands that run a model.
#pragma once

#include <filesystem>
#include <memory>

#include "plimsoll/app/json_lines.h"
#include "plimsoll/cli/command.h"
#include "plimsoll/ops/watch/audited_torch.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::cli {

Option audit_option(std::filesystem::path& path);

// Records what this thread runs while it lives; of an empty path nothing.
class AuditFile {
 public:
  // Begins the file anew. Throws io::Error.
  explicit AuditFile(const std::filesystem::path& path);

  // Writes all that was recorded until now.
  void write();

 private:
  struct Recording {
    watch::Audit audit;
    watch::AuditRecording recording{&audit};
    ops::AuditedTorch torch_rows;
  };
  app::JsonLines lines_;
  std::unique_ptr<Recording> recording_;
};

// Each row to `lines`.
void write_audit(const watch::Audit& audit, app::JsonLines& lines);

}  // namespace plimsoll::cli
