// The rows of precision_table() that torch's own CPU autocast lacks, as kernels of its dispatch key. They hold where a
// thread says so; elsewhere, under a plain torch.autocast, operators do what they do without this library.
#pragma once

#include <string_view>

namespace plimsoll::amp {

// The switch is torch's own, that of autocast for IPUs, which no tensor of this library lives on. What keeps, restores,
// compares or traces torch's autocast state (Snapshot, torch.compile's guards, graphs and caches, torch.export) does so
// with the table, too. Python reads and sets it as torch.is_autocast_enabled("ipu").
bool precision_table_holds();
void set_precision_table_holds(bool holds);

class PrecisionTableGuard {
 public:
  explicit PrecisionTableGuard(bool holds) : outside_(precision_table_holds()) { set_precision_table_holds(holds); }
  ~PrecisionTableGuard() { set_precision_table_holds(outside_); }
  PrecisionTableGuard(const PrecisionTableGuard&) = delete;
  PrecisionTableGuard& operator=(const PrecisionTableGuard&) = delete;

 private:
  bool outside_;
};

// Whether torch's CPU autocast lacks the row.
bool is_mended(std::string_view op);

}  // namespace plimsoll::amp
