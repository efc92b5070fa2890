// What plimsoll.amp.autocast adds to torch's: the precision table.
#include <torch/library.h>

#include <string>
#include <vector>

#include "plimsoll/amp/precision_kernels.h"
#include "plimsoll/amp/precision_table.h"

namespace plimsoll::bind {
namespace {

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
  library.def("precision_table() -> (str[] ops, int[] precisions, bool[] mended)", &precision_table);
}

}  // namespace plimsoll::bind
