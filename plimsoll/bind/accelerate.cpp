// The switch of acceleration, and what became of the calls.
#include "plimsoll/accelerate/accelerate.h"

#include <torch/library.h>

#include <string>
#include <tuple>
#include <vector>

#include "plimsoll/accelerate/rules.h"

namespace plimsoll::bind {
namespace {

// A row for each operator and outcome.
std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<int64_t>> report() {
  std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<int64_t>> rows;
  for (const OperatorCalls& op : acceleration_report()) {
    for (const OperatorCalls::Outcome& outcome : op.outcomes) {
      std::get<0>(rows).emplace_back(op.op);
      std::get<1>(rows).emplace_back(outcome.name);
      std::get<2>(rows).push_back(outcome.calls);
    }
  }
  return rows;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("accelerate() -> ()", [] { accelerate(); });
  library.def("stop_acceleration() -> ()", [] { stop_acceleration(); });
  library.def("set_acceleration_rules(bool in_force) -> ()", [](bool in_force) { acceleration::set_rules(in_force); });
  library.def("is_accelerated() -> bool", [] { return is_accelerated(); });
  library.def("acceleration_report() -> (str[] ops, str[] outcomes, int[] calls)", &report);
  library.def("reset_acceleration_report() -> ()", [] { reset_acceleration_report(); });
}

}  // namespace plimsoll::bind
