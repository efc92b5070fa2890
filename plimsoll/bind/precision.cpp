// The precision table, which plimsoll.amp.autocast adds to torch's.
#include <torch/library.h>

#include <array>
#include <string>
#include <vector>

#include "plimsoll/amp/precision_kernels.h"
#include "plimsoll/amp/precision_table.h"
#include "plimsoll/recipe/named.h"

namespace plimsoll::bind {
namespace {

constexpr std::array<recipe::Named<amp::Precision>, 3> kPrecisions = {
    {{"narrow", amp::Precision::kNarrow}, {"fp32", amp::Precision::kFp32}, {"widest", amp::Precision::kWidest}}};

std::tuple<std::vector<std::string>, std::vector<std::string>, c10::List<bool>> precision_table() {
  std::tuple<std::vector<std::string>, std::vector<std::string>, c10::List<bool>> rows;
  for (const amp::PrecisionRow& row : amp::precision_table()) {
    std::get<0>(rows).emplace_back(row.op);
    std::get<1>(rows).emplace_back(recipe::name_of(kPrecisions, row.precision));
    std::get<2>(rows).push_back(amp::is_mended(row.op));
  }
  return rows;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("precision_table() -> (str[] ops, str[] precisions, bool[] mended)", &precision_table);
}

}  // namespace plimsoll::bind
