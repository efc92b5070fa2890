#include "plimsoll/tokenize/sentencepiece/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/sentencepiece/sentencepiece_model.h"

namespace plimsoll::tokenize {

struct SentencePiece::Processor {
  sentencepiece::SentencePieceProcessor model;
  SentencePieceSizes sizes;
};

namespace {

// Bytes of text that the library may hold at a time: it takes about a hundred bytes of memory for each, and counts them
// in an int.
constexpr size_t kMaxBytesAtATime = size_t{1} << 27;

// A damaged model makes the library return an error, or the library's own library throw one.
bool loads(sentencepiece::SentencePieceProcessor& model, std::string_view bytes) {
  try {
    return model.LoadFromSerializedProto(bytes).ok();
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

SentencePiece::SentencePiece(const std::filesystem::path& path) {
  const SentencePieceModel file = read_sentencepiece_model(path);
  const auto processor = std::make_shared<Processor>();
  processor->sizes = file.sizes;
  if (!loads(processor->model, file.bytes)) {
    io::fail("{}: expected a sentencepiece model, got something else", path.native());
  }
  processor_ = processor;
}

int64_t SentencePiece::size() const { return processor_->model.GetPieceSize(); }

std::string SentencePiece::piece(int64_t id) const { return processor_->model.IdToPiece(static_cast<int>(id)); }

std::optional<char> SentencePiece::byte_of(int64_t id) const {
  constexpr size_t kBegin = 3;  // of the digits of <0xF0>
  if (id < 0 || id >= size() || !processor_->model.IsByte(static_cast<int>(id))) return std::nullopt;
  return static_cast<char>(std::stoi(piece(id).substr(kBegin, 2), nullptr, 16));
}

std::optional<int64_t> SentencePiece::find(std::string_view piece) const {
  const int64_t id = processor_->model.PieceToId(piece);  // the unknown one's for what it does not have
  return id >= 0 && id < size() && this->piece(id) == piece ? std::optional(id) : std::nullopt;
}

int64_t SentencePiece::unknown_id() const { return processor_->model.unk_id(); }

std::vector<int64_t> SentencePiece::encode(std::string_view text) const {
  const size_t limit = kMaxBytesAtATime / processor_->sizes.encoded_growth;
  if (text.size() > limit) io::fail("tokenizer: expected a text of at most {} bytes, got {}", limit, text.size());
  std::vector<int> ids;
  const auto status = processor_->model.Encode(text, &ids);
  if (!status.ok()) io::fail("tokenizer: cannot encode the text: {}", status.ToString());
  return {ids.begin(), ids.end()};
}

std::string SentencePiece::decode(std::span<const int64_t> ids) const {
  std::vector<int> known;
  for (const int64_t id : ids) {
    if (id >= 0 && id < size()) known.push_back(static_cast<int>(id));
  }
  const size_t limit =
      kMaxBytesAtATime / processor_->sizes.decoded_growth / std::max(processor_->sizes.longest_piece, size_t{1});
  if (known.size() > limit) io::fail("tokenizer: expected at most {} ids, got {}", limit, known.size());
  std::string text;
  const auto status = processor_->model.Decode(known, &text);
  if (!status.ok()) io::fail("tokenizer: cannot decode the ids: {}", status.ToString());
  return text;
}

}  // namespace plimsoll::tokenize
