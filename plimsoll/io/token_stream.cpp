#include "plimsoll/io/token_stream.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "plimsoll/io/error.h"
#include "plimsoll/io/permutation.h"

namespace plimsoll::io {
namespace {

int64_t count_windows(const Tokens& tokens, int64_t context) {
  const int64_t windows = (tokens.count() - 1) / context;
  if (tokens.count() == 0) fail("data: expected text, got 0 bytes");
  if (windows < 2) {
    fail("data: expected at least {} tokens (two windows of context {}), got {}", 2 * context + 1, context,
         tokens.count());
  }
  return windows;
}

}  // namespace

TokenStream::TokenStream(std::unique_ptr<const Tokens> tokens, int64_t context, uint64_t seed)
    : tokens_(std::move(tokens)),
      digest_(tokens_->digest()),
      context_(context),
      seed_(seed),
      split_(count_windows(*tokens_, context)) {}

TokenStream::TokenStream(Text text, int64_t context, uint64_t seed)
    : TokenStream(std::make_unique<ByteTokens>(std::move(text)), context, seed) {}

void TokenStream::read_window(int64_t window, int64_t* tokens) const {
  tokens_->read(window * context_, {tokens, static_cast<size_t>(context_ + 1)});
}

at::Tensor TokenStream::next(int64_t batch) {
  at::Tensor tokens = at::empty({batch, context_ + 1}, at::kLong);
  auto* row = tokens.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < batch; ++i, row += context_ + 1) {
    if (cursor_.index == training_windows()) cursor_ = {.epoch = cursor_.epoch + 1, .index = 0};
    const Permutation order(training_windows(), seed_, static_cast<uint64_t>(cursor_.epoch));
    read_window(split_.training(order(cursor_.index++)), row);
  }
  return tokens;
}

at::Tensor TokenStream::validation(int64_t begin, int64_t end, int64_t count) const {
  at::Tensor tokens = at::empty({end - begin, context_ + 1}, at::kLong);
  auto* row = tokens.mutable_data_ptr<int64_t>();
  for (int64_t i = begin; i < end; ++i, row += context_ + 1) {
    read_window(split_.validation(i * validation_windows() / count), row);
  }
  return tokens;
}

void TokenStream::seek(Cursor cursor) {
  if (cursor.epoch < 0 || cursor.index < 0 || cursor.index > training_windows()) {
    fail("data: expected a position within {} training windows, got {} (another text?)", training_windows(),
         cursor.index);
  }
  cursor_ = cursor;
}

}  // namespace plimsoll::io
