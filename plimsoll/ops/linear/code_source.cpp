#include "plimsoll/ops/linear/code_source.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "plimsoll/runtime/unexpected.h"

namespace plimsoll::ops {
namespace {

// member(source) of all, one after another.
template <class Member>
at::Tensor joined_members(const std::vector<CodeSource>& sources, const Member& member) {
  if (sources.size() == 1) return member(sources.front());
  std::vector<at::Tensor> parts;
  for (const CodeSource& source : sources) parts.push_back(member(source));
  return at::cat(parts);
}

}  // namespace

at::Tensor joined_codes(const std::vector<CodeSource>& sources) {
  return joined_members(sources, [](const CodeSource& source) { return source.stored.codes; });
}

at::Tensor joined_scales(const std::vector<CodeSource>& sources) {
  return joined_members(sources, [](const CodeSource& source) { return source.stored.scale; });
}

at::Tensor joined_tensor_scales(const std::vector<CodeSource>& sources) {
  const float first = sources.front().stored.tensor_scale;
  if (std::ranges::all_of(sources, [&](const CodeSource& each) { return each.stored.tensor_scale == first; })) {
    return at::full({1}, first, at::kFloat);
  }
  return joined_members(sources, [](const CodeSource& source) {
    return at::full({source.rows()}, source.stored.tensor_scale, at::kFloat);
  });
}

double bytes_of_codes(CodeKind kind, int64_t rows, int64_t cols) {
  const auto blocks = [&](int64_t width) {
    return static_cast<double>(rows) * static_cast<double>((cols + width - 1) / width);
  };
  constexpr double kFp32Bytes = 4;
  switch (kind) {
    case CodeKind::kE4m3Rows:
      return blocks(1) + static_cast<double>(rows) * kFp32Bytes;
    case CodeKind::kE4m3Blocks:
      return blocks(1) + blocks(128) * kFp32Bytes;
    case CodeKind::kNvfp4:
      return blocks(2) + blocks(16) + kFp32Bytes;
    case CodeKind::kMxfp4:
      return blocks(2) + blocks(32);
  }
  runtime::unexpected("codes: kind", static_cast<int>(kind));
}

void for_each_part(const std::vector<CodeSource>& sources,
                   const std::function<void(const at::Tensor& part, int64_t first_row)>& body) {
  constexpr int64_t kPartBytes = int64_t{16} << 20;
  int64_t first_row = 0;
  for (const auto& [weight, done, stored] : sources) {
    const int64_t rows = weight.size(0);
    const int64_t step =
        std::max<int64_t>(kPartBytes / std::max<int64_t>(weight.size(1) * weight.element_size(), 1), 1);
    for (int64_t begin = 0; begin < rows; begin += step) {
      body(weight.narrow(0, begin, std::min(step, rows - begin)), first_row + begin);
      if (done) done();
    }
    first_row += rows;
  }
}

}  // namespace plimsoll::ops
