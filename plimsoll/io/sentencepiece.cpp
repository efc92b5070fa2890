#include "plimsoll/io/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>

#include "plimsoll/io/error.h"
#include "plimsoll/io/sentencepiece_model.h"

namespace plimsoll::io {

struct SentencePiece::Processor {
  sentencepiece::SentencePieceProcessor model;
  SentencePieceSizes sizes;
};

namespace {

// Bytes of text that the library may hold at a time: it takes about a hundred bytes of memory for each, and counts them
// in an int.
constexpr size_t kMaxTextBytes = size_t{1} << 27;

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
    fail("{}: expected a sentencepiece model, got something else", path.native());
  }
  processor_ = processor;
}

int64_t SentencePiece::size() const { return processor_->model.GetPieceSize(); }

std::vector<int64_t> SentencePiece::encode(std::string_view text) const {
  const size_t limit = kMaxTextBytes / processor_->sizes.encoded_growth;
  if (text.size() > limit) fail("tokenizer: expected a text of at most {} bytes, got {}", limit, text.size());
  std::vector<int> ids;
  const auto status = processor_->model.Encode(text, &ids);
  if (!status.ok()) fail("tokenizer: cannot encode the text: {}", status.ToString());
  return {ids.begin(), ids.end()};
}

std::string SentencePiece::decode(const std::vector<int64_t>& ids) const {
  std::vector<int> known;
  for (const int64_t id : ids) {
    if (id >= 0 && id < size()) known.push_back(static_cast<int>(id));
  }
  const size_t limit =
      kMaxTextBytes / processor_->sizes.decoded_growth / std::max(processor_->sizes.longest_piece, size_t{1});
  if (known.size() > limit) fail("tokenizer: expected at most {} ids, got {}", limit, known.size());
  std::string text;
  const auto status = processor_->model.Decode(known, &text);
  if (!status.ok()) fail("tokenizer: cannot decode the ids: {}", status.ToString());
  return text;
}

}  // namespace plimsoll::io
