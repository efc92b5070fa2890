#include "plimsoll/tokenize/sentencepiece/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "plimsoll/io/error.h"
#include "plimsoll/io/regular_file.h"
#include "plimsoll/tokenize/sentencepiece/charsmap.h"
#include "plimsoll/tokenize/sentencepiece/protobuf.h"

namespace plimsoll::tokenize {
namespace {

using Wire = ProtobufField::Wire;

constexpr uint64_t kMaxModelBytes = uint64_t{1} << 26;  // XLM-R's, the largest in wide use, has 5 MB
constexpr size_t kMaxPieces = size_t{1} << 20;          // UMT5 has 256,300
constexpr size_t kMaxPieceBytes = 1024;                 // the library builds its trie with a call for each byte
constexpr size_t kMaxNestedSymbols = 64;                // PrefixMatcher::PrefixMatch has room for so many matches
constexpr size_t kSpaceBytes = 3;                       // a space becomes U+2581

// Fields of ModelProto and of what is in it.
constexpr uint32_t kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3, kSelfTest = 4, kDenormalizerSpec = 5;
constexpr uint32_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr uint32_t kUserDefined = 4;  // a type
constexpr uint32_t kUnknownSurface = 44;
constexpr uint32_t kPrecompiledCharsmap = 2;

class ModelCheck {
 public:
  ModelCheck(const std::string& name, SentencePieceModel& model) : name_(name), model_(model) {}

  // Appends to the model what the library may load.
  void check(std::string_view message) {
    visit(message, [&](const ProtobufField& field) {
      if (field.number == kSelfTest) return;  // the library prints a line for each sentence that fails
      if (field.wire == Wire::kBytes) check_part(field);
      model_.bytes += field.whole;
    });
    check_nesting();
  }

 private:
  template <class Visit>
  void visit(std::string_view message, const Visit& visit_field) const {
    ProtobufReader reader(message);
    for (ProtobufField field{}; reader.next(field);) visit_field(field);
    if (reader.malformed()) io::fail("{}: expected a sentencepiece model, got something else", name_);
  }

  void check_part(const ProtobufField& part) {
    if (part.number == kPieces) check_piece(part.bytes);
    if (part.number == kTrainerSpec) check_trainer(part.bytes);
    if (part.number == kNormalizerSpec) {
      model_.sizes.encoded_growth = std::max(model_.sizes.encoded_growth, kSpaceBytes * growth_of(part.bytes));
    }
    if (part.number == kDenormalizerSpec) {
      model_.sizes.decoded_growth = std::max(model_.sizes.decoded_growth, kSpaceBytes * growth_of(part.bytes));
    }
  }

  void check_piece(std::string_view message) {
    if (++pieces_ > kMaxPieces) io::fail("{}: expected at most {} pieces, got more", name_, kMaxPieces);
    std::string_view text;
    bool user_defined = false;
    visit(message, [&](const ProtobufField& field) {
      if (field.number == kPieceText && field.wire == Wire::kBytes) text = field.bytes;
      if (field.number == kPieceScore && field.wire == Wire::kFixed32) {
        const auto score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
        if (!std::isfinite(score)) io::fail("{}: piece {}: expected a finite score, got {}", name_, pieces_ - 1, score);
      }
      if (field.number == kPieceType && field.wire == Wire::kVarint) {
        user_defined = user_defined || static_cast<uint32_t>(field.value) == kUserDefined;
      }
    });
    check_length("piece", text);
    if (user_defined) symbols_.push_back(text.substr(0, text.find('\0')));  // the library's keys end there
  }

  void check_trainer(std::string_view message) {
    visit(message, [&](const ProtobufField& field) {
      if (field.number == kUnknownSurface && field.wire == Wire::kBytes) check_length("unk_surface", field.bytes);
    });
  }

  void check_length(const char* what, std::string_view text) {
    if (text.size() > kMaxPieceBytes) {
      io::fail("{}: {}: expected at most {} bytes, got {}", name_, what, kMaxPieceBytes, text.size());
    }
    model_.sizes.longest_piece = std::max(model_.sizes.longest_piece, text.size());
  }

  size_t growth_of(std::string_view normalizer) const {
    size_t growth = 1;
    visit(normalizer, [&](const ProtobufField& field) {
      if (field.number != kPrecompiledCharsmap || field.wire != Wire::kBytes || field.bytes.empty()) return;
      growth = std::max(growth, check_charsmap(field.bytes, name_));
    });
    return growth;
  }

  // Sorted, each symbol follows those that it begins with.
  void check_nesting() {
    std::sort(symbols_.begin(), symbols_.end());
    symbols_.erase(std::unique(symbols_.begin(), symbols_.end()), symbols_.end());
    std::vector<std::string_view> nested;
    for (const std::string_view symbol : symbols_) {
      while (!nested.empty() && !symbol.starts_with(nested.back())) nested.pop_back();
      nested.push_back(symbol);
      if (nested.size() > kMaxNestedSymbols) {
        io::fail("{}: expected at most {} user-defined pieces that begin with one another, got more", name_,
                 kMaxNestedSymbols);
      }
    }
  }

  const std::string& name_;
  SentencePieceModel& model_;
  size_t pieces_ = 0;
  std::vector<std::string_view> symbols_;  // the user-defined pieces
};

}  // namespace

SentencePieceModel read_sentencepiece_model(const std::filesystem::path& path) {
  const std::string file = io::read_file(path, kMaxModelBytes);
  SentencePieceModel model;
  ModelCheck(path.native(), model).check(file);
  return model;
}

}  // namespace plimsoll::tokenize
