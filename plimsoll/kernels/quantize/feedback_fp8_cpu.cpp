#include <algorithm>
#include <cfloat>
#include <cmath>

#include "plimsoll/format/fp8.h"
#include "plimsoll/kernels/column_feedback.h"
#include "plimsoll/kernels/quantize/block_scale.h"
#include "plimsoll/kernels/quantize/feedback_fp8.h"
#include "plimsoll/runtime/divide_up.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::E4m3;

class Fp8Rounder {
 public:
  explicit Fp8Rounder(const FeedbackFp8& args)
      : args_(args),
        block_rows_(args.block_rows > 0 ? args.block_rows : std::max<int64_t>(args.rows, 1)),
        block_cols_(args.block_cols > 0 ? args.block_cols : std::max<int64_t>(args.cols, 1)),
        scale_stride_(runtime::divide_up(args.cols, block_cols_)) {}

  // Rows that threads take at once: whole blocks.
  int64_t unit_rows() const { return runtime::divide_up(kFeedbackRows, block_rows_) * block_rows_; }

  void round(FeedbackRange rows) const {
    const ColumnFeedback matrix = {.x = args_.x, .cols = args_.cols, .feedback = args_.feedback};
    for (int64_t begin = 0; begin < args_.cols; begin += block_cols_) {
      const FeedbackRange cols = {begin, std::min(begin + block_cols_, args_.cols)};
      for (int64_t first = rows.begin; first < rows.end; first += block_rows_) {
        const FeedbackRange block = {first, std::min(first + block_rows_, rows.end)};
        scale_at(first, begin) = scale_of(block, cols);
      }
      const auto encode = [&](int64_t row, int64_t col, double x) {
        const float scale = scale_at(row, begin);
        const E4m3::Code code = E4m3::encode(static_cast<float>(x) * (1.0f / scale));
        args_.codes[row * args_.cols + col] = code;
        return E4m3::decode(code) * scale;
      };
      round_with_feedback(matrix, rows, cols, encode);
    }
  }

 private:
  float& scale_at(int64_t row, int64_t col) const {
    return args_.scale[row / block_rows_ * scale_stride_ + col / block_cols_];
  }

  float scale_of(FeedbackRange rows, FeedbackRange cols) const {
    float amax = 0;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const double* x = args_.x + row * args_.cols;
      for (int64_t col = cols.begin; col < cols.end; ++col) {
        amax = std::max(amax, std::fabs(static_cast<float>(x[col])));
      }
    }
    return fp32_block_scale(std::min(amax, FLT_MAX), E4m3::kMaxFinite, /*power_of_two=*/false);
  }

  const FeedbackFp8& args_;
  const int64_t block_rows_, block_cols_, scale_stride_;
};

}  // namespace

void feedback_fp8(const FeedbackFp8& args) {
  const Fp8Rounder rounder(args);
  const int64_t unit = rounder.unit_rows();
  runtime::parallel_for(runtime::divide_up(args.rows, unit), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) rounder.round({i * unit, std::min((i + 1) * unit, args.rows)});
  });
}

}  // namespace plimsoll::kernels
