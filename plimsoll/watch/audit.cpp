#include "plimsoll/watch/audit.h"

#include <nlohmann/json.hpp>
#include <ostream>
#include <utility>

#include "plimsoll/runtime/pick.h"

namespace plimsoll::watch {
namespace {

thread_local Audit* audit_in_force = nullptr;

nlohmann::ordered_json to_json(const AuditOperand& operand) {
  nlohmann::ordered_json json = {{"name", operand.name}, {"format", operand.format}};
  if (!operand.values_of.empty()) json["values_of"] = operand.values_of;
  if (operand.granularity.empty()) return json;
  json["granularity"] = operand.granularity;
  json["source"] = operand.source;
  json["scale"] = operand.scale;
  return json;
}

// Everything that makes a row another one.
nlohmann::ordered_json identity_of(const AuditRow& row) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!row.run.empty()) json["run"] = row.run;
  json["layer"] = row.layer;
  json["op"] = row.op;
  json["operands"] = nlohmann::ordered_json::array();
  for (const AuditOperand& operand : row.operands) json["operands"].push_back(to_json(operand));
  json["output"] = row.output;
  json["kernel"] = row.kernel;
  json["decided"] = row.decided;
  json["reason"] = row.reason;
  return json;
}

// The level of the loops that runtime::pick chooses.
runtime::Isa loops_isa() {
  static constexpr runtime::Isa kPortable = runtime::Isa::kPortable, kAvx2 = runtime::Isa::kAvx2,
                                kAvx512 = runtime::Isa::kAvx512;
  return runtime::pick(kPortable, kAvx2, kAvx512);
}

}  // namespace

void Audit::add(AuditRow row) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (row.layer.empty() && !modules_.empty()) row.layer = modules_.back();
  row.run = run();
  if (const auto found = reasons_.find({row.run, row.layer}); row.decided == "dtype" && found != reasons_.end()) {
    row.decided = "layer";
    row.reason = found->second;
  }
  calls_ += row.calls;
  const auto [place, is_new] = places_.emplace(identity_of(row).dump(), rows_.size());
  if (is_new) {
    rows_.push_back(std::move(row));
    return;
  }
  AuditRow& known = rows_[place->second];
  known.calls += row.calls;
  known.operations += row.operations;
}

std::vector<AuditRow> Audit::rows() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rows_;
}

double Audit::operations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  double sum = 0;
  for (const AuditRow& row : rows_) sum += row.operations;
  return sum;
}

int64_t Audit::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return calls_;
}

void Audit::enter(std::string path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  modules_.push_back(std::move(path));
}

void Audit::leave(std::string_view path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!modules_.empty() && modules_.back() == path) modules_.pop_back();
}

std::string Audit::module() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return modules_.empty() ? std::string() : modules_.back();
}

void Audit::explain_layer(const std::string& path, std::string reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reasons_[{run(), path}] = std::move(reason);
}

std::string Audit::run() const { return runs_.empty() ? std::string() : runs_.back(); }

void Audit::enter_run(std::string_view name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string whole = run();
  if (!whole.empty()) whole += ' ';
  runs_.push_back(whole.append(name));
}

void Audit::leave_run() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!runs_.empty()) runs_.pop_back();
}

Audit* auditing() { return audit_in_force; }

AuditRecording::AuditRecording(Audit* audit) : previous_(std::exchange(audit_in_force, audit)) {}
AuditRecording::~AuditRecording() { audit_in_force = previous_; }

void audit_operator(const AuditedOperator& ran) {
  Audit* const audit = auditing();
  if (audit == nullptr) return;
  const auto name = [](format::Format format) { return std::string(format::info(format).name); };
  AuditRow row = {.layer = {},
                  .op = std::string(ran.op),
                  .operands = {},
                  .output = ran.output ? name(*ran.output) : "",
                  .kernel = std::string(runtime::name(ran.isa.value_or(loops_isa()))),
                  .decided = "dtype",
                  .operations = ran.operations};
  if (ran.input) row.operands.push_back({.name = "input", .format = name(*ran.input)});
  if (ran.cache) row.operands.push_back({.name = "cache", .format = name(*ran.cache)});
  audit->add(std::move(row));
}

AuditedLayer::AuditedLayer(std::string_view path) : audit_(path.empty() ? nullptr : auditing()) {
  if (audit_ == nullptr) return;
  path_ = path;
  audit_->enter(path_);
}

AuditedLayer::~AuditedLayer() {
  if (audit_ != nullptr) audit_->leave(path_);
}

AuditedRun::AuditedRun(std::string_view name) : audit_(auditing()) {
  if (audit_ != nullptr) audit_->enter_run(name);
}

AuditedRun::~AuditedRun() {
  if (audit_ != nullptr) audit_->leave_run();
}

void write_json_lines(std::ostream& out, const Audit& audit) {
  const std::vector<AuditRow> rows = audit.rows();
  std::map<std::string, double> operations;  // by run
  for (const AuditRow& row : rows) operations[row.run] += row.operations;
  for (const AuditRow& row : rows) {
    const double all = operations[row.run];
    nlohmann::ordered_json line = identity_of(row);
    line["calls"] = row.calls;
    line["operations"] = row.operations;
    line["share"] = all > 0 ? row.operations / all : 0;
    out << line.dump() << "\n";
  }
}

}  // namespace plimsoll::watch
