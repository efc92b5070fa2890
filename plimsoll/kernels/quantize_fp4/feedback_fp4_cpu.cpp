#include <algorithm>
#include <array>
#include <cmath>

#include "plimsoll/kernels/quantize_fp4/feedback_fp4.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

using format::E2m1;
using format::E8m0;
using format::Mxfp4;
using format::Nvfp4;

constexpr int64_t kLargestBlock = 32;
constexpr int64_t kRowsAtOnce = 16;  // at a time: their values and a block's rows of `feedback` stay in cache together

// Codes of a block of one row, and what they lose over the diagonal of `feedback`.
struct BlockLoss {
  std::array<double, kLargestBlock> over_diagonal;
};

class Rounder {
 public:
  explicit Rounder(const FeedbackFp4& args)
      : args_(args),
        block_(format::fp4_block(args.scaling)),
        is_nvfp4_(format::is_nvfp4(args.scaling)),
        encode_scale_(is_nvfp4_ ? Nvfp4::encode_scale(args.tensor_amax, args.scaling) : 1.0f),
        tensor_scale_(1.0f / encode_scale_) {}

  void round(int64_t begin, int64_t end) const {
    std::array<BlockLoss, kRowsAtOnce> losses;
    for (int64_t first = begin; first < end; first += kRowsAtOnce) {
      const int64_t last = std::min(first + kRowsAtOnce, end);
      for (int64_t col = 0; col < args_.cols; col += block_) {
        for (int64_t row = first; row < last; ++row) losses[static_cast<size_t>(row - first)] = round_block(row, col);
        for (int64_t row = first; row < last; ++row) carry(row, col, losses[static_cast<size_t>(row - first)]);
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

  BlockLoss round_block(int64_t row, int64_t col) const {
    double* x = args_.x + row * args_.cols + col;
    float amax = 0;
    for (int64_t i = 0; i < block_; ++i) amax = std::max(amax, std::fabs(static_cast<float>(x[i])));
    const Scale scale = scale_of(amax);
    args_.scale[(row * args_.cols + col) / block_] = scale.code;
    uint8_t* codes = args_.codes + (row * args_.cols + col) / 2;
    BlockLoss loss;
    uint8_t even = 0;
    for (int64_t i = 0; i < block_; ++i) {
      const double* feedback = args_.feedback + (col + i) * args_.cols + col;
      const E2m1::Code code = E2m1::encode(static_cast<float>(x[i]) * scale.factor);
      const float value = E2m1::decode(code) * scale.unit * tensor_scale_;
      const double lost = (x[i] - static_cast<double>(value)) / feedback[i];
      for (int64_t j = i + 1; j < block_; ++j) x[j] -= lost * feedback[j];
      loss.over_diagonal[static_cast<size_t>(i)] = lost;
      if (i % 2 == 0) {
        even = code;
      } else {
        codes[i / 2] = E2m1::pair(even, code);
      }
    }
    return loss;
  }

  // To the columns after the block, in the order of its own.
  void carry(int64_t row, int64_t col, const BlockLoss& loss) const {
    double* x = args_.x + row * args_.cols;
    for (int64_t i = 0; i < block_; i += 4) {
      const double* lost = loss.over_diagonal.data() + i;
      const double* a = args_.feedback + (col + i) * args_.cols;
      const double *b = a + args_.cols, *c = b + args_.cols, *d = c + args_.cols;
      for (int64_t j = col + block_; j < args_.cols; ++j) {
        x[j] = x[j] - lost[0] * a[j] - lost[1] * b[j] - lost[2] * c[j] - lost[3] * d[j];
      }
    }
  }

  const FeedbackFp4& args_;
  const int64_t block_;
  const bool is_nvfp4_;
  const float encode_scale_, tensor_scale_;
};

}  // namespace

void feedback_fp4(const FeedbackFp4& args) {
  const Rounder rounder(args);
  runtime::parallel_for(args.rows, kRowsAtOnce, [&](int64_t begin, int64_t end) { rounder.round(begin, end); });
}

}  // namespace plimsoll::kernels
