#include "plimsoll/io/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <exception>

#include "plimsoll/io/error.h"
#include "plimsoll/io/mapped_file.h"

namespace plimsoll::io {

struct SentencePiece::Processor {
  sentencepiece::SentencePieceProcessor model;
};

namespace {

// Of a damaged model the library returns an error, or its own library throws one.
bool loads(sentencepiece::SentencePieceProcessor& model, std::string_view bytes) {
  try {
    return model.LoadFromSerializedProto(bytes).ok();
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

SentencePiece::SentencePiece(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto processor = std::make_shared<Processor>();
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (!loads(processor->model, bytes)) fail("{}: expected a sentencepiece model, got something else", path.native());
  processor_ = processor;
}

int64_t SentencePiece::size() const { return processor_->model.GetPieceSize(); }

std::vector<int64_t> SentencePiece::encode(std::string_view text) const {
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
  std::string text;
  const auto status = processor_->model.Decode(known, &text);
  if (!status.ok()) fail("tokenizer: cannot decode the ids: {}", status.ToString());
  return text;
}

}  // namespace plimsoll::io
