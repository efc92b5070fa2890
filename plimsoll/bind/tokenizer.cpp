// tokenizer.json for plimsoll.tokenize, as torch.classes.plimsoll.Tokenizer.
#include <torch/custom_class.h>
#include <torch/library.h>

#include "plimsoll/tokenize/decode_stream.h"
#include "plimsoll/tokenize/json/tokenizer_json.h"

namespace plimsoll::bind {
namespace {

using Ids = std::vector<int64_t>;

struct BoundTokenizer : torch::CustomClassHolder {
  explicit BoundTokenizer(const std::string& directory) : json(directory) {}
  const tokenize::TokenizerJson json;
};
using TokenizerPointer = c10::intrusive_ptr<BoundTokenizer>;

tokenize::Specials specials(bool with) { return with ? tokenize::Specials::kWith : tokenize::Specials::kWithout; }

struct BoundDecodeStream : torch::CustomClassHolder {
  BoundDecodeStream(TokenizerPointer of, bool with_specials)
      : tokenizer(std::move(of)), stream(tokenizer->json, specials(with_specials)) {}
  const TokenizerPointer tokenizer;
  tokenize::DecodeStream stream;
};

}  // namespace
}  // namespace plimsoll::bind

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  using namespace plimsoll::bind;
  library.class_<BoundTokenizer>("Tokenizer")
      .def(torch::init<std::string>())
      .def("encode", [](const TokenizerPointer& self, const std::string& text,
                        bool with) { return self->json.encode(text, specials(with)); })
      .def("decode", [](const TokenizerPointer& self, const Ids& ids,
                        bool with) { return self->json.decode(ids, specials(with)); })
      .def("token_to_id",
           [](const TokenizerPointer& self, const std::string& token) { return self->json.token_to_id(token); })
      .def("id_to_token", [](const TokenizerPointer& self, int64_t id) { return self->json.id_to_token(id); })
      .def("size", [](const TokenizerPointer& self) { return self->json.size(); })
      .def("bos", [](const TokenizerPointer& self) { return self->json.bos(); })
      .def("eos", [](const TokenizerPointer& self) { return self->json.eos(); });
  library.class_<BoundDecodeStream>("DecodeStream")
      .def(torch::init<TokenizerPointer, bool>())
      .def("next",
           [](const c10::intrusive_ptr<BoundDecodeStream>& self, int64_t id) {
             self->tokenizer->json.check_ids({&id, 1});
             return self->stream.next(id);
           })
      .def("finish", [](const c10::intrusive_ptr<BoundDecodeStream>& self) { return self->stream.finish(); });
}
