// Batches of a text's tokens: shuffled, resumable, the same for the same seed on every machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "plimsoll/io/tokens.h"
#include "plimsoll/io/window_split.h"

namespace plimsoll::io {

// A window is context + 1 tokens: context inputs and, one token later, their targets. Windows start every `context`
// bytes. Each epoch visits every training window once, in an order of its own.
class TokenStream {
 public:
  // Position in the stream: `seek` with it goes on where another stream stood.
  struct Cursor {
    int64_t epoch = 0;
    int64_t index = 0;  // windows taken in this epoch
  };

  // Throws Error unless the text holds at least two windows (one to train on, one held out).
  TokenStream(std::unique_ptr<const Tokens> tokens, int64_t context, uint64_t seed);
  // The tokens are the text's bytes.
  TokenStream(Text text, int64_t context, uint64_t seed);

  int64_t context() const { return context_; }
  int64_t tokens() const { return tokens_->count(); }
  const std::string& digest() const { return digest_; }  // Tokens::digest
  int64_t training_windows() const { return split_.training_count(); }
  int64_t validation_windows() const { return split_.validation_count(); }

  // The next windows in shuffled order: [batch, context + 1] int64.
  at::Tensor next(int64_t batch);

  // Rows begin .. end - 1 of `count` windows spread evenly over the held-out ones: [end - begin, context + 1] int64.
  at::Tensor validation(int64_t begin, int64_t end, int64_t count) const;

  Cursor cursor() const { return cursor_; }
  // Throws Error for a cursor outside this text.
  void seek(Cursor cursor);

 private:
  void read_window(int64_t window, int64_t* tokens) const;

  std::unique_ptr<const Tokens> tokens_;
  std::string digest_;
  int64_t context_;
  uint64_t seed_;
  WindowSplit split_;
  Cursor cursor_;
};

}  // namespace plimsoll::io
