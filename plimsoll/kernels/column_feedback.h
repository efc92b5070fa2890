// Columns of a matrix that become codes one after another and make up for each other's errors: what an element loses, over the
// diagonal of `feedback`, times the row of `feedback` that its column has is taken from the columns after it. Source: Frantar et
// al., "GPTQ", arXiv 2210.17323. All of it in FP64, and each element loses in the order of the columns: the bits depend neither
// on how rows and columns are divided nor on the ISA.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace plimsoll::kernels {

struct ColumnFeedback {
  double* x = nullptr;  // [rows, cols]; what is left of it has no meaning
  int64_t cols = 0;
  const double* feedback =
      nullptr;  // [cols, cols], upper triangular with a positive diagonal: U of U^T U = inverse of X^T X
};

struct FeedbackRange {
  int64_t begin = 0, end = 0;
};

// Rows and columns at a time: their values and the columns' rows of `feedback` stay in cache together.
inline constexpr int64_t kFeedbackRows = 16, kFeedbackCols = 32;

// Losses of elements of one row, over the diagonal of `feedback`.
using FeedbackLosses = std::array<double, kFeedbackCols>;

// The columns, at most kFeedbackCols, of one row.
template <class Round>
FeedbackLosses round_columns(const ColumnFeedback& args, int64_t row, FeedbackRange cols, const Round& round) {
  FeedbackLosses losses;
  double* x = args.x + row * args.cols;
  for (int64_t col = cols.begin; col < cols.end; ++col) {
    const double* feedback = args.feedback + col * args.cols;
    const float value = round(row, col, x[col]);
    const double lost = (x[col] - static_cast<double>(value)) / feedback[col];
    for (int64_t j = col + 1; j < cols.end; ++j) x[j] -= lost * feedback[j];
    losses[static_cast<size_t>(col - cols.begin)] = lost;
  }
  return losses;
}

// From these columns of one row to those after them.
inline void carry_losses(const ColumnFeedback& args, int64_t row, FeedbackRange cols, const FeedbackLosses& losses) {
  double* x = args.x + row * args.cols;
  const double* lost = losses.data();
  const double* a = args.feedback + cols.begin * args.cols;
  int64_t left = cols.end - cols.begin;
  for (; left >= 4; left -= 4, lost += 4, a += 4 * args.cols) {
    const double *b = a + args.cols, *c = b + args.cols, *d = c + args.cols;
    for (int64_t j = cols.end; j < args.cols; ++j) {
      x[j] = x[j] - lost[0] * a[j] - lost[1] * b[j] - lost[2] * c[j] - lost[3] * d[j];
    }
  }
  for (; left > 0; --left, ++lost, a += args.cols) {
    for (int64_t j = cols.end; j < args.cols; ++j) x[j] -= *lost * a[j];
  }
}

// round(row, col, x): writes the code of an element and returns the value of the code, finite.
template <class Round>
void round_with_feedback(const ColumnFeedback& args, FeedbackRange rows, FeedbackRange cols, const Round& round) {
  std::array<FeedbackLosses, kFeedbackRows> losses;
  for (int64_t first = rows.begin; first < rows.end; first += kFeedbackRows) {
    const int64_t last = std::min(first + kFeedbackRows, rows.end);
    for (int64_t begin = cols.begin; begin < cols.end; begin += kFeedbackCols) {
      const FeedbackRange now = {begin, std::min(begin + kFeedbackCols, cols.end)};
      for (int64_t row = first; row < last; ++row) {
        losses[static_cast<size_t>(row - first)] = round_columns(args, row, now, round);
      }
      for (int64_t row = first; row < last; ++row) {
        carry_losses(args, row, now, losses[static_cast<size_t>(row - first)]);
      }
    }
  }
}

}  // namespace plimsoll::kernels
