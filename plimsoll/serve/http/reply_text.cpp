#include "plimsoll/serve/http/reply_text.h"

#include <utility>

namespace plimsoll::serve {

std::optional<ReplyPiece> ReplyText::next() {
  if (ended_) return std::nullopt;
  ReplyPiece piece;
  piece.token = reply_->next();
  if (!piece.token) {
    ended_ = true;
    end_ = reply_->end();
    piece.text = stops_.add(stream_.finish());
    piece.text += stops_.finish();
    return piece.text.empty() ? std::nullopt : std::optional(std::move(piece));
  }
  ++tokens_;
  if (!piece.token->ends_text) piece.text = stops_.add(stream_.next(piece.token->token.id));
  if (stops_.reached()) {
    ended_ = true;
    end_ = models::TextEnd::kStop;
    reply_->cancel();
  }
  return piece;
}

}  // namespace plimsoll::serve
