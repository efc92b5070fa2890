#include "plimsoll/autoscale/variants.h"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace plimsoll::autoscale {
namespace {

using c10::Argument;
using c10::FunctionSchema;
using c10::OperatorHandle;

bool is_same_value(const Argument& a, const Argument& b) { return a.name() == b.name() && *a.type() == *b.type(); }

// Whether the first arguments of `variant` are those of `functional`, and how many more it has.
bool begins_alike(const FunctionSchema& functional, const FunctionSchema& variant, size_t more) {
  const std::vector<Argument>&own = functional.arguments(), &other = variant.arguments();
  return other.size() == own.size() + more && std::equal(own.begin(), own.end(), other.begin(), &is_same_value);
}

bool is_in_place_of(const FunctionSchema& functional, const FunctionSchema& variant) {
  if (!begins_alike(functional, variant, 0) || functional.returns().size() != 1) return false;
  const std::vector<Argument>& arguments = variant.arguments();
  return !arguments.empty() && is_written(arguments.front()) &&
         std::none_of(arguments.begin() + 1, arguments.end(), &is_written);
}

bool is_out_of(const FunctionSchema& functional, const FunctionSchema& variant) {
  const size_t results = functional.returns().size(), own = functional.arguments().size();
  if (!begins_alike(functional, variant, results) || variant.returns().size() != results) return false;
  const auto first = variant.arguments().begin(), outs = first + static_cast<std::ptrdiff_t>(own);
  const auto is_tensor = [](const Argument& argument) { return argument.type()->kind() == c10::TypeKind::TensorType; };
  return std::none_of(first, outs, &is_written) && std::all_of(outs, variant.arguments().end(), &is_written) &&
         std::all_of(outs, variant.arguments().end(), is_tensor);
}

// Operators that torch has under one name, such as aten::add_.
const std::vector<OperatorHandle>& overloads_of(const std::string& name) {
  using Overloads = std::unordered_map<std::string, std::vector<OperatorHandle>>;
  static const Overloads all = [] {
    Overloads found;
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& each : dispatcher.getAllOpNames())
      if (const std::optional<OperatorHandle> op = dispatcher.findSchema(each)) found[each.name].push_back(*op);
    return found;
  }();
  static const std::vector<OperatorHandle> none;
  const auto found = all.find(name);
  return found == all.end() ? none : found->second;
}

}  // namespace

bool is_written(const Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

Variants variants_of(const OperatorHandle& functional) {
  const FunctionSchema& schema = functional.schema();
  Variants variants;
  const auto is_alias = [](const Argument& argument) { return argument.alias_info() != nullptr; };
  if (std::any_of(schema.arguments().begin(), schema.arguments().end(), is_alias)) return variants;
  for (const OperatorHandle& op : overloads_of(schema.name() + "_"))
    if (is_in_place_of(schema, op.schema())) variants.in_place.push_back(op);
  for (const OperatorHandle& op : overloads_of(schema.name()))
    if (!schema.returns().empty() && is_out_of(schema, op.schema())) variants.out.push_back(op);
  return variants;
}

}  // namespace plimsoll::autoscale
