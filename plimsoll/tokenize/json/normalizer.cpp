#include "plimsoll/tokenize/json/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/fields.h"

namespace plimsoll::tokenize {
namespace {

// Characters below U+0300 are what NFC makes of them and compose with nothing before them; in UTF-8 all others begin
// with a byte of at least CC.
bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0xCC; });
}

std::string compose_characters(std::string_view text) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  if (bytes < 0) io::fail("tokenizer: cannot normalize the text: {}", utf8proc_errmsg(bytes));
  return {reinterpret_cast<const char*>(composed), static_cast<size_t>(bytes)};
}

}  // namespace

Pattern read_pattern(const Fields& step) {
  const Fields pattern = step.object("pattern");
  const std::string name = step.name_of("pattern");
  if (const auto literal = pattern.text_or_none("String")) return Pattern::literal(*literal, name);
  if (const auto expression = pattern.text_or_none("Regex")) return Pattern::regular(*expression, name);
  io::fail("{}: expected a String or a Regex", name);
}

Replacement read_replacement(const Fields& step) { return {read_pattern(step), step.text("content")}; }

std::string Replacement::apply(std::string_view text, PatternTime& time) const {
  std::vector<Range> matches;
  pattern.find(text, matches, time);
  std::string result;
  size_t end = 0;
  for (const Range& match : matches) {
    result += text.substr(end, match.begin - end);
    result += content;
    end = match.end;
  }
  return result += text.substr(end);
}

Normalizer::Normalizer(const nlohmann::json& component, const std::string& name) {
  for_each_step(component, name, "normalizers", [&](const Fields& step, const std::string& type) {
    if (type == "NFC") {
      steps_.emplace_back(Nfc{});
    } else if (type == "Replace") {
      steps_.emplace_back(read_replacement(step));
    } else if (type == "Prepend") {
      steps_.emplace_back(Prepend{step.text("prepend")});
    } else {
      step.refuse("type", "NFC, Replace, Prepend or Sequence");
    }
  });
}

Piece Normalizer::apply_step(const Nfc&, Piece piece, MadeTexts& made) {
  if (!is_plain(piece.text)) piece.text = made.keep(compose_characters(piece.text));
  return piece;
}

Piece Normalizer::apply_step(const Prepend& step, Piece piece, MadeTexts& made) {
  if (!piece.text.empty()) piece.text = made.keep(step.text + std::string(piece.text));
  return piece;
}

Piece Normalizer::apply_step(const Replacement& step, Piece piece, MadeTexts& made) {
  piece.text = made.keep(step.apply(piece.text, made.time));
  return piece;
}

Piece Normalizer::apply(Piece piece, MadeTexts& made) const {
  for (const auto& any : steps_)
    piece = std::visit([&](const auto& step) { return apply_step(step, piece, made); }, any);
  return piece;
}

}  // namespace plimsoll::tokenize
