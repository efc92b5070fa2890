// Plan of running one operator of torch on scaled tensors: its schema read once, with the rule that it has, if any.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

#include "plimsoll/autoscale/rule.h"

namespace plimsoll::autoscale {

enum class ArgumentKind : uint8_t { kTensor, kTensors, kOptionalTensors, kNumber, kOther };

struct ArgumentPlan {
  ArgumentKind kind = ArgumentKind::kOther;
  Use use = Use::kAnyScale;             // of tensors
  NumberUse number = NumberUse::kAsIs;  // of a number
  bool written = false;                 // by the operator
  bool written_unsaid = false;          // by the operator, whose schema does not say so
};

struct ResultPlan {
  ResultScale scale = ResultScale::kMeasured;
  int written = -1;  // the argument that is returned
};

struct Plan {
  c10::OperatorHandle called;
  c10::OperatorHandle run;  // what is called on data: the functional twin of an operator with a rule
  std::string name;
  const Rule* rule = nullptr;  // none: values in FP32
  Kernel* kernel = nullptr;
  ScalesRule* scales = nullptr;  // nullptr: in one scale
  bool in_place = false;         // the result of `run` is written into the first argument
  bool is_composite = false;     // torch has it in terms of other operators
  bool counts_as_rule = false;   // the operator has a rule, which these operands have no use for
  std::vector<ArgumentPlan> arguments = {};
  std::vector<ResultPlan> results = {};
  int dtype_argument = -1;
  int input_dtype_argument = -1;  // the dtype of a forward pass's input, which was FP32

  bool is_fallback() const { return rule == nullptr; }
};

// The dtype that a call asks for, by an argument of that name.
std::optional<at::ScalarType> asked_dtype(const Plan& plan, const torch::jit::Stack& stack);

// Whether a call asks for a dtype that the data cannot stand in for: integers, complex numbers, or one that rounds.
bool casts(const Plan& plan, const torch::jit::Stack& stack);

// rule: nullptr, or that of `op` or of its functional twin `run`.
Plan make_plan(const c10::OperatorHandle& op, const Rule* rule, const c10::OperatorHandle& run);

// The plan of an operator with a rule that writes into a plain tensor, which gets the values.
Plan plan_on_values(const c10::OperatorHandle& op);

// The plan of an operator that torch was handed no rule of, made when it is first called.
const Plan& plan_when_called(const c10::OperatorHandle& op);

}  // namespace plimsoll::autoscale
