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

// Records what this thread runs while it lives; of an empty path nothing. A command that ends before it has anything to
// write leaves the file as it was, or none.
class AuditFile {
 public:
  // Throws Error where the file cannot be written.
  explicit AuditFile(const std::filesystem::path& path);
  ~AuditFile();
  AuditFile(const AuditFile&) = delete;
  AuditFile& operator=(const AuditFile&) = delete;

  // Empties the file: before processes are forked that write to it, each after the other.
  void begin();
  // Writes all that was recorded until now; at first it begins the file.
  void write();

 private:
  struct Recording {
    watch::Audit audit;
    watch::AuditRecording recording{&audit};
    ops::AuditedTorch torch_rows;
  };
  std::filesystem::path path_;
  bool is_new_;  // there was no such file
  bool has_begun_ = false;
  app::JsonLines lines_;
  std::unique_ptr<Recording> recording_;
};

// Each row to `lines`.
void write_audit(const watch::Audit& audit, app::JsonLines& lines);

}  // namespace plimsoll::cli
