// What plimsoll.amp.autocast adds to torch's: the precision table, and whether it holds on this thread.
#include <torch/library.h>

#include <string>
#include <vector>

#include "plimsoll/amp/precision_kernels.h"
#include "plimsoll/amp/precision_table.h"

namespace plimsoll::python {
namespace {

bool hold_precision_table(bool holds) {
  const bool before = amp::precision_table_holds();
  amp::set_precision_table_holds(holds);
  return before;
}

std::tuple<std::vector<std::string>, std::vector<int64_t>, c10::List<bool>> precision_table() {
  std::tuple<std::vector<std::string>, std::vector<int64_t>, c10::List<bool>> rows;
  for (const amp::PrecisionRow& row : amp::precision_table()) {
    std::get<0>(rows).emplace_back(row.op);
    std::get<1>(rows).push_back(static_cast<int64_t>(row.precision));
    std::get<2>(rows).push_back(amp::is_mended(row.op));
  }
  return rows;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("hold_precision_table(bool holds) -> bool", &hold_precision_table);
  library.def("precision_table() -> (str[] ops, int[] precisions, bool[] mended)", &precision_table);
}

}  // namespace plimsoll::python
