#include "plimsoll/nn/report_values.h"

#include <string>

#include "plimsoll/ops/dtype.h"
#include "plimsoll/ops/quantize.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::nn {

void report_values(std::string_view path, std::string_view place, const at::Tensor& values) {
  if (watch::current() == nullptr || path.empty()) return;
  std::string name(path);
  name.append("/").append(place);
  watch::report(name, {.format = ops::format_of(values.scalar_type(), "watch"),
                       .amax = ops::amax(ops::as_matrix(values.detach(), "watch"))});
}

}  // namespace plimsoll::nn
