#include <algorithm>
#include <array>
#include <cmath>

#include "plimsoll/kernels/column_feedback.h"
#include "plimsoll/kernels/quantize_fp4/feedback_fp4.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::E2m1;
using format::E8m0;
using format::Mxfp4;
using format::Nvfp4;

class Fp4Rounder {
 public:
  explicit Fp4Rounder(const FeedbackFp4& args)
      : args_(args),
        block_(format::fp4_block(args.scaling)),
        is_nvfp4_(format::is_nvfp4(args.scaling)),
        encode_scale_(is_nvfp4_ ? Nvfp4::encode_scale(args.tensor_amax, args.scaling) : 1.0f),
        tensor_scale_(1.0f / encode_scale_) {}

  void round(FeedbackRange rows) const {
    const ColumnFeedback matrix = {.x = args_.x, .cols = args_.cols, .feedback = args_.feedback};
    std::array<Scale, kFeedbackRows> scales;
    for (int64_t first = rows.begin; first < rows.end; first += kFeedbackRows) {
      const int64_t last = std::min(first + kFeedbackRows, rows.end);
      for (int64_t begin = 0; begin < args_.cols; begin += block_) {
        for (int64_t row = first; row < last; ++row) {
          Scale& scale = scales[static_cast<size_t>(row - first)];
          scale = scale_of(amax_at(row, begin));
          args_.scale[(row * args_.cols + begin) / block_] = scale.code;
        }
        const auto encode = [&](int64_t row, int64_t col, double x) {
          const Scale& scale = scales[static_cast<size_t>(row - first)];
          const E2m1::Code code = E2m1::encode(static_cast<float>(x) * scale.factor);
          uint8_t& pair = args_.codes[(row * args_.cols + col) / 2];
          pair = col % 2 == 0 ? code : E2m1::pair(pair, code);
          return E2m1::decode(code) * scale.unit * tensor_scale_;
        };
        round_with_feedback(matrix, {first, last}, {begin, begin + block_}, encode);
      }
    }
  }

 private:
  struct Scale {
    uint8_t code;
    float factor;  // of values before they are encoded
    float unit;    // of a code's value; the value is unit * code, times the tensor's scale
  };
  Scale scale_of(float amax) const {
    if (!is_nvfp4_) {
      const E8m0::Code code = Mxfp4::block_scale(amax, args_.scaling);
      return {code, E8m0::decode_inverse(code), E8m0::decode(code)};
    }
    const auto code = Nvfp4::block_scale(amax, encode_scale_);
    return {code, Nvfp4::factor(encode_scale_, code), format::E4m3::decode(code)};
  }

  // The largest magnitude of the block of a row that begins at the column.
  float amax_at(int64_t row, int64_t col) const {
    const double* x = args_.x + row * args_.cols + col;
    float amax = 0;
    for (int64_t i = 0; i < block_; ++i) amax = std::max(amax, std::fabs(static_cast<float>(x[i])));
    return amax;
  }

  const FeedbackFp4& args_;
  const int64_t block_;
  const bool is_nvfp4_;
  const float encode_scale_, tensor_scale_;
};

}  // namespace

void feedback_fp4(const FeedbackFp4& args) {
  const Fp4Rounder rounder(args);
  runtime::parallel_for(args.rows, kFeedbackRows, [&](int64_t begin, int64_t end) { rounder.round({begin, end}); });
}

}  // namespace plimsoll::kernels
