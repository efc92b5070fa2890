// Record of what ran, and in which formats: a row for each product and operator, made by the calls themselves.
//
//   watch::Audit audit;
//   {
//     const watch::AuditRecording recording(&audit);  // of this thread
//     ... train ...
//   }
//   for (const watch::AuditRow& row : audit.rows()) ...
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plimsoll/format/format.h"
#include "plimsoll/runtime/cpu.h"

namespace plimsoll::watch {

struct AuditOperand {
  std::string name;              // "input", "weight", "grad_output"; of an operator "input", "cache"
  std::string format;            // "e4m3", "bf16"
  std::string values_of = {};    // format of the codes whose values the operand is; empty: it never was codes
  std::string granularity = {};  // "tensor", "row", "1x128" of the matrix [rows, sum]; empty, as the next two: no scale
  std::string source = {};       // "delayed", "current", "held" codes of the weight, "autoscale"
  std::string scale = {};        // "fp32", "power of two", "e8m0"
};

struct AuditRow {
  std::string layer;  // path in the model; empty where it is not known
  std::string op;     // "gemm output", "norm", "aten::linear"
  std::vector<AuditOperand> operands;
  std::string output;  // format
  std::string kernel;  // arithmetic and instruction set: "fp32 avx512"
  std::string
      decided;  // by whom the formats are: "recipe", "override", "layer", "file", "fallback", "auto", "dtype", "torch"
  std::string reason = {};  // why the formats are not those that were asked for
  std::string run = {};     // one of several in a program: "fp8"; the audit fills it in, see AuditedRun
  int64_t calls = 1;
  double operations = 0;  // multiplications and additions, two a multiply-add; 0 where it is not known
};

class Audit {
 public:
  // Calls and operations join those of the row that is the same otherwise. Safe to use from several threads.
  void add(AuditRow row);

  // In the order in which they first ran.
  std::vector<AuditRow> rows() const;
  double operations() const;
  int64_t calls() const;  // all rows' together

  // A call of a module begins and ends: rows without a layer of their own have its path.
  void enter(std::string path);
  void leave(std::string_view path);
  std::string module() const;  // the path of the call that began last; empty: none

  // A run begins and ends, see AuditedRun.
  void enter_run(std::string_view name);
  void leave_run();

  // In the run at hand the layer's products are in a dtype because its definition says so, whatever the recipe asks for.
  void explain_layer(const std::string& path, std::string reason);

 private:
  std::string run() const;

  mutable std::mutex mutex_;
  std::vector<AuditRow> rows_;
  std::unordered_map<std::string, size_t> places_;  // by all but calls and operations
  std::vector<std::string> modules_;
  std::vector<std::string> runs_;
  std::map<std::pair<std::string, std::string>, std::string> reasons_;  // by run and layer
  int64_t calls_ = 0;
};

// The audit in force on this thread; nullptr where nobody records, which costs one thread-local read.
Audit* auditing();

// Puts an audit in force on the constructing thread, until destruction there; nullptr: nobody records. Nests: the inner
// one holds.
class AuditRecording {
 public:
  explicit AuditRecording(Audit* audit);
  ~AuditRecording();
  AuditRecording(const AuditRecording&) = delete;
  AuditRecording& operator=(const AuditRecording&) = delete;

 private:
  Audit* previous_;
};

// An operator that is no matrix product.
struct AuditedOperator {
  std::string_view op;
  std::optional<format::Format> input, cache = {}, output;  // cache: of keys and values
  std::optional<runtime::Isa> isa = {};                     // none: that of loops, which runtime::pick chooses
  double operations = 0;
};
// Adds a row to the audit in force; nothing where there is none.
void audit_operator(const AuditedOperator& ran);

// Path of a layer for all rows inside that have none.
class AuditedLayer {
 public:
  explicit AuditedLayer(std::string_view path);
  ~AuditedLayer();
  AuditedLayer(const AuditedLayer&) = delete;
  AuditedLayer& operator=(const AuditedLayer&) = delete;

 private:
  Audit* audit_;
  std::string path_;
};

// Name of a run for all rows inside, of a program that runs a model several times: in several formats, before and after
// a change. Inside another run its name follows that one's, "gauge fp16". Names must not be empty.
class AuditedRun {
 public:
  explicit AuditedRun(std::string_view name);
  ~AuditedRun();
  AuditedRun(const AuditedRun&) = delete;
  AuditedRun& operator=(const AuditedRun&) = delete;

 private:
  Audit* audit_;
};

// One JSON object a line: the members of a row, its run alone where it has one, and its share of all operations of its
// run.
void write_json_lines(std::ostream& out, const Audit& audit);

}  // namespace plimsoll::watch
