// Tokenizers for plimsoll.tokenize, as torch.classes.plimsoll.Tokenizer.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>

#include "plimsoll/tokenize/decode_stream.h"
#include "plimsoll/tokenize/json/tokenizer_json.h"
#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

namespace plimsoll::bind {
namespace {

using Ids = std::vector<int64_t>;

struct BoundTokenizer : torch::CustomClassHolder {
  // t5_vocabulary: rows of a T5's embedding, whose spiece.model is read; 0: tokenizer.json.
  BoundTokenizer(const std::string& directory, int64_t t5_vocabulary) {
    if (t5_vocabulary > 0) {
      own = std::make_unique<tokenize::T5Tokenizer>(directory, t5_vocabulary);
    } else {
      own = std::make_unique<tokenize::TokenizerJson>(directory);
    }
  }
  std::unique_ptr<const tokenize::Tokenizer> own;
};
using TokenizerPointer = c10::intrusive_ptr<BoundTokenizer>;

tokenize::Specials specials(bool with) { return with ? tokenize::Specials::kWith : tokenize::Specials::kWithout; }

struct BoundDecodeStream : torch::CustomClassHolder {
  BoundDecodeStream(TokenizerPointer of, bool with_specials)
      : tokenizer(std::move(of)), stream(*tokenizer->own, specials(with_specials)) {}
  const TokenizerPointer tokenizer;
  tokenize::DecodeStream stream;
};

}  // namespace
}  // namespace plimsoll::bind

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  using namespace plimsoll::bind;
  library.class_<BoundTokenizer>("Tokenizer")
      .def(torch::init<std::string, int64_t>())
      .def("encode", [](const TokenizerPointer& self, const std::string& text,
                        bool with) { return self->own->encode(text, specials(with)); })
      .def("decode", [](const TokenizerPointer& self, const Ids& ids,
                        bool with) { return self->own->decode(ids, specials(with)); })
      .def("token_to_id",
           [](const TokenizerPointer& self, const std::string& token) { return self->own->token_to_id(token); })
      .def("id_to_token", [](const TokenizerPointer& self, int64_t id) { return self->own->id_to_token(id); })
      .def("size", [](const TokenizerPointer& self) { return self->own->size(); })
      .def("bos", [](const TokenizerPointer& self) { return self->own->bos(); })
      .def("eos", [](const TokenizerPointer& self) { return self->own->eos(); });
  library.class_<BoundDecodeStream>("DecodeStream")
      .def(torch::init<TokenizerPointer, bool>())
      .def("next",
           [](const c10::intrusive_ptr<BoundDecodeStream>& self, int64_t id) {
             self->tokenizer->own->check_ids({&id, 1});
             return self->stream.next(id);
           })
      .def("finish", [](const c10::intrusive_ptr<BoundDecodeStream>& self) { return self->stream.finish(); });
}
