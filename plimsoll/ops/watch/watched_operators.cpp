#include "plimsoll/ops/watch/watched_operators.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/ops/tensor/dtype.h"
#include "plimsoll/ops/watch/module_paths.h"
#include "plimsoll/ops/watch/watch_facts.h"
#include "plimsoll/watch/call_site.h"
#include "plimsoll/watch/counts.h"
#include "plimsoll/watch/report.h"

namespace plimsoll::ops {
namespace {

thread_local int depth = 0;  // of operators inside each other: the outermost is the one that somebody called

// Facts about an operator that are known when it begins.
struct Running : at::ObserverContext {
  bool is_operator = false;  // else a function of Python, such as an autograd.Function: what it calls counts
  Values arguments;          // of the outermost; else empty
  float amax = 0;            // of all tensors that it reads
  int64_t products = 0;      // before it
  std::string path;          // in the module that is called; empty: none
};

// NaN > Inf > finite.
float largest(const std::vector<at::Tensor>& tensors) {
  float amax = 0;
  for (const at::Tensor& tensor : tensors) {
    const float own = amax_of_any(tensor);
    if (std::isnan(own)) return own;
    amax = std::max(amax, own);
  }
  return amax;
}

// Somebody wants the Inf: a mask.
bool is_given_infinity(const Values& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
    return value.isScalar() && !value.isBool() && !std::isfinite(value.toScalar().toDouble());
  });
}

// Without what the operator writes and does not read, which holds whatever was in that memory before.
Values read_of(const at::RecordFunction& function, Values arguments) {
  const std::string_view name = function.name();
  const bool overwrites = name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_";
  if (overwrites && !arguments.empty()) arguments.front() = {};
  const auto schema = function.operator_schema();
  if (!schema) return arguments;
  for (size_t i = 0; i < std::min(arguments.size(), schema->arguments().size()); ++i) {
    const c10::Argument& argument = schema->arguments()[i];
    if (argument.is_out()) arguments[i] = {};
  }
  return arguments;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Memory without values, and what cannot be told from it.
bool has_no_values(std::string_view name) { return contains(name, "empty") || contains(name, "resize"); }

bool shares_storage(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::any_of(a.begin(), a.end(), [&](const at::Tensor& x) {
    return std::any_of(b.begin(), b.end(), [&](const at::Tensor& y) { return x.is_alias_of(y); });
  });
}

// Results that should be finite: the logarithms of an attention's sums are -Inf where a query sees no key.
std::vector<at::Tensor> results_of(const at::RecordFunction& function) {
  std::vector<at::Tensor> results = tensors_of(function.outputs());
  if (contains(function.name(), "attention") && results.size() > 1) results.resize(1);
  return results;
}

// The result that went wrong first: where one is Inf and another NaN, as a norm's sum and output, the Inf was before.
std::optional<size_t> bad_result(const std::vector<at::Tensor>& results) {
  std::optional<size_t> bad;
  for (size_t i = 0; i < results.size(); ++i) {
    const float amax = amax_of_any(results[i]);
    if (std::isinf(amax)) return i;
    if (std::isnan(amax) && !bad) bad = i;
  }
  return bad;
}

class Observer {
 public:
  explicit Observer(watch::Session& session)
      : window_(session.incidents()),
        handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {
    outer_ = std::exchange(session_, &session);
  }
  ~Observer() {
    at::removeCallback(handle_);
    session_ = outer_;
  }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  ShadowWindow& window() { return window_; }
  ModulePaths& modules() { return modules_; }

 private:
  // Torch takes callbacks along to threads of its own, such as those in which Gloo's collectives run: no session is in force there.
  static bool is_at_work() { return session_ != nullptr && session_ == watch::current(); }
  static Observer& self() { return *static_cast<Observer*>(session_->observer()); }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    auto running = std::make_unique<Running>();
    running->is_operator = function.operator_schema().has_value();
    if (!running->is_operator || depth++ > 0 || !is_at_work()) return running;
    const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
    running->path = self().modules_.next(function.name());
    if (!session_->follows() && running->path.empty()) return running;
    running->arguments.assign(function.inputs().begin(), function.inputs().end());
    if (!session_->follows()) return running;
    running->amax = largest(tensors_of(read_of(function, running->arguments)));
    running->products = session_->incidents().steps();
    session_->take_overflow();
    return running;
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto& running = *static_cast<Running*>(context);
    if (running.is_operator) --depth;
    if (running.arguments.empty() || !is_at_work()) return;
    const at::RecordFunctionGuard quiet(/*is_enabled=*/false);
    const std::vector<at::Tensor> results = results_of(function);
    if (!running.path.empty()) report(function, running, results);
    if (session_->follows()) examine(function, running, results);
  }

  // Operands and result of an operator with a path, and in Mode::kCount how many elements of the result were lost.
  static void report(const at::RecordFunction& function, const Running& running,
                     const std::vector<at::Tensor>& results) {
    const auto schema = function.operator_schema();
    for (size_t i = 0; schema && i < std::min(running.arguments.size(), schema->arguments().size()); ++i) {
      const c10::IValue& value = running.arguments[i];
      if (value.isTensor()) report(running.path + "/" + schema->arguments()[i].name(), value.toTensor());
    }
    const std::string slot = running.path + "/output";
    if (results.empty() || !report(slot, results.front()) || session_->mode() != watch::Mode::kCount) return;
    const watch::Observation seen = observation_of(results.front());
    const std::optional<c10::OperatorName> name = function.operator_name();
    // A result of zeros may be one that was flushed: torch has rounded it already.
    const bool is_zero = seen.amax == 0 && seen.format != format::Format::kFp32;
    if (!name || !(is_zero || watch::worth_counting(seen.amax, seen.format))) return;
    const auto widen = [](const at::Tensor& tensor) { return tensor.to(at::kFloat); };
    const std::vector<at::Tensor> wide = tensors_of(run_wider(*name, running.arguments, widen));
    if (wide.empty() || wide.front().scalar_type() != at::kFloat) return;
    const at::Tensor values = wide.front().contiguous();
    const std::span<const float> all(values.const_data_ptr<float>(), static_cast<size_t>(values.numel()));
    session_->slots().count(slot, watch::count(all, seen.format, 1));
  }

  static watch::Observation observation_of(const at::Tensor& tensor) {
    return {.format = format_of(tensor.scalar_type(), "watch"), .amax = amax_of_any(tensor)};
  }

  // False of a tensor whose values nobody can see.
  static bool report(const std::string& slot, const at::Tensor& tensor) {
    if (!has_values(tensor)) return false;
    session_->slots().report(slot, observation_of(tensor));
    return true;
  }

  static void examine(const at::RecordFunction& function, const Running& running,
                      const std::vector<at::Tensor>& results) {
    const std::string_view name = function.name();
    const std::vector<at::Tensor> operands = tensors_of(running.arguments);
    const auto schema = function.operator_schema();
    const bool is_view = !(schema && schema->is_mutable()) && shares_storage(operands, results);
    // One that is made of products has been seen by them.
    const bool is_watched = session_->incidents().steps() != running.products;
    if (operands.empty() || results.empty() || has_no_values(name) || is_watched) return;
    if (is_view) return keep(function, running, results, {});
    const std::string path = running.path.empty() ? after_last(name) : running.path;
    const int64_t call = session_->incidents().next_call(path);
    if (!std::isfinite(running.amax)) {
      session_->incidents().follow(path, harm_of(running.amax, largest(results)));
    } else if (const std::optional<size_t> bad = bad_result(results);
               bad && !is_given_infinity(running.arguments) && !session_->incidents().knows(path)) {
      add(function, running, {.path = path, .op = std::string(name), .call = call}, results, *bad);
    }
    keep(function, running, results, path);
    if (running.path.empty() || !has_values(results.front())) return;
    const watch::Observation seen = observation_of(results.front());
    session_->incidents().step(path, seen.amax, watch::headroom_bits(seen));
  }

  static std::string after_last(std::string_view name) {
    const std::string last = session_->incidents().last_path();
    return last.empty() ? std::string(name) : std::string(name) + " after " + last;
  }

  // For the window.
  static void keep(const at::RecordFunction& function, const Running& running, const std::vector<at::Tensor>& results,
                   std::string path) {
    const std::optional<c10::OperatorName> name = function.operator_name();
    ShadowWindow* const window = shadow_window(*session_);
    if (window == nullptr || !name) return;
    window->add({.path = std::move(path),
                 .operands = tensors_of(running.arguments),
                 .results = results,
                 .again = [name = *name, arguments = running.arguments, count = results.size()](const Widen& widen) {
                   std::vector<at::Tensor> wide = tensors_of(run_wider(name, arguments, widen));
                   wide.resize(std::min(wide.size(), count));
                   return wide;
                 }});
  }

  static void add(const at::RecordFunction& function, const Running& running, watch::Incident incident,
                  const std::vector<at::Tensor>& results, size_t bad) {
    const at::Tensor& result = results[bad];
    if (!find_bad(result, incident)) return;
    if (std::isnan(largest(results))) incident.harm = watch::Harm::kNanProducing;
    incident.result = facts_of("result", result);
    for (const at::Tensor& operand : tensors_of(running.arguments)) {
      if (!operand.is_floating_point() || operand.scalar_type() == at::kDouble) continue;
      incident.operands.push_back(facts_of("operand", operand));
      const bool overwritten = operand.is_alias_of(result);
      if (operand.sizes() == result.sizes() && !overwritten) {
        incident.operands.back().at_place = element_at(operand, incident);
      }
    }
    if (session_->mode() == watch::Mode::kShadow) replay(function, running, result, bad, incident);
    if (const uintptr_t instruction = session_->take_overflow(); instruction != 0) {
      incident.instruction = watch::describe_address(instruction);
    }
    incident.backtrace = watch::backtrace();
    session_->incidents().add(std::move(incident));
  }

  static void replay(const at::RecordFunction& function, const Running& running, const at::Tensor& result, size_t bad,
                     watch::Incident& incident) {
    const std::optional<c10::OperatorName> name = function.operator_name();
    if (!name) return;
    const auto widen = [](const at::Tensor& tensor) { return tensor.to(at::kFloat); };
    const std::vector<at::Tensor> wide = tensors_of(run_wider(*name, running.arguments, widen));
    if (bad >= wide.size() || wide[bad].sizes() != result.sizes()) return;
    incident.value = element_at(wide[bad], incident);
    incident.replay = compare(wide[bad], result);
  }

  static thread_local watch::Session* session_;
  ShadowWindow window_;
  ModulePaths modules_;
  at::CallbackHandle handle_;
  watch::Session* outer_;
};

thread_local watch::Session* Observer::session_ = nullptr;

}  // namespace

void observe_operators(watch::Session& session) {
  if (session.follows() && session.observer() == nullptr) session.keep_observer(std::make_shared<Observer>(session));
}

void enter_module(watch::Session& session, const ModuleCall& call) {
  // A module of ours alone needs no observer before its first product.
  if (session.observer() == nullptr && call.path.empty()) return;
  if (session.observer() == nullptr) session.keep_observer(std::make_shared<Observer>(session));
  static_cast<Observer*>(session.observer())->modules().enter(call.path, call.is_layer);
}

void leave_module(watch::Session& session, const ModuleCall& call) {
  if (session.observer() == nullptr) return;
  static_cast<Observer*>(session.observer())->modules().leave(call.path);
}

void stop_at_incident(const watch::Session& session) {
  const std::vector<watch::Incident> incidents = session.incidents().all();
  TORCH_CHECK(incidents.empty(), "watch: ", watch::describe(incidents.front()));
}

ShadowWindow* shadow_window(const watch::Session& session) {
  if (session.mode() != watch::Mode::kShadow || session.observer() == nullptr) return nullptr;
  return &static_cast<Observer*>(session.observer())->window();
}

}  // namespace plimsoll::ops
