#include "plimsoll/tokenize/json/decoder.h"

#include <charconv>
#include <optional>

#include "plimsoll/io/error.h"
#include "plimsoll/tokenize/fields.h"
#include "plimsoll/tokenize/json/byte_alphabet.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

constexpr int64_t kMaxStripped = 1024;

std::string join(const std::vector<std::string>& tokens, std::string_view between) {
  std::string text;
  for (const std::string& token : tokens) {
    if (&token != tokens.data()) text += between;
    text += token;
  }
  return text;
}

// The byte of <0x00> to <0xFF>.
std::optional<uint8_t> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 ? std::optional(byte) : std::nullopt;
}

// The token's bytes, if all its characters are of the byte alphabet; else its text.
void append_bytes(std::string& bytes, const std::string& token) {
  const size_t begin = bytes.size();
  for (size_t place = 0; place < token.size();) {
    const Character character = character_at(token, place);
    const auto byte = byte_of_character(character.value);
    if (!byte) {
      bytes.resize(begin);
      bytes += token;
      return;
    }
    bytes += static_cast<char>(*byte);
    place += character.bytes;
  }
}

}  // namespace

Decoder::Decoder(const nlohmann::json& component, const std::string& name) {
  for_each_step(component, name, "decoders", [&](const Fields& step, const std::string& type) {
    if (type == "ByteLevel") {
      steps_.emplace_back(ByteLevel{});
    } else if (type == "ByteFallback") {
      steps_.emplace_back(ByteFallback{});
    } else if (type == "Fuse") {
      steps_.emplace_back(Fuse{});
    } else if (type == "Strip") {
      std::string character;
      append_character(character, step.character("content"));
      steps_.emplace_back(Strip{character, step.integer("start", kMaxStripped), step.integer("stop", kMaxStripped)});
    } else if (type == "Replace") {
      steps_.emplace_back(read_replacement(step));
    } else if (type == "Metaspace") {
      steps_.emplace_back(read_metaspace(step));
    } else {
      step.refuse("type", "ByteLevel, ByteFallback, Replace, Fuse, Strip, Metaspace or Sequence");
    }
  });
  joins_with_spaces_ = component.is_null();
}

bool Decoder::apply_step(const ByteLevel&, Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens.texts) append_bytes(bytes, token);
  tokens.texts = {replace_broken(bytes)};
  return !ends_inside_character(bytes);
}

// A run of bytes that is no UTF-8 as a whole becomes U+FFFD for each.
bool Decoder::apply_step(const ByteFallback&, Tokens& tokens) {
  std::vector<std::string> result;
  std::string run;
  bool complete = true;
  const auto end_run = [&] {
    if (run.empty()) return;
    if (valid_bytes(run) == run.size()) {
      result.push_back(run);
    } else {
      complete = !ends_inside_character(run);
      result.insert(result.end(), run.size(), std::string(kReplacementCharacter));
    }
    run.clear();
  };
  for (std::string& token : tokens.texts) {
    if (const auto byte = fallback_byte(token)) {
      run += static_cast<char>(*byte);
    } else {
      end_run();
      complete = true;
      result.push_back(std::move(token));
    }
  }
  end_run();
  tokens.texts = std::move(result);
  return complete;
}

bool Decoder::apply_step(const Fuse&, Tokens& tokens) {
  tokens.texts = {join(tokens.texts, "")};
  return true;
}

bool Decoder::apply_step(const Strip& step, Tokens& tokens) {
  for (std::string& token : tokens.texts) {
    std::string_view text = token;
    for (int64_t i = 0; i < step.begin && text.starts_with(step.character); ++i)
      text.remove_prefix(step.character.size());
    for (int64_t i = 0; i < step.end && text.ends_with(step.character); ++i) text.remove_suffix(step.character.size());
    token = std::string(text);
  }
  return true;
}

bool Decoder::apply_step(const Replacement& step, Tokens& tokens) {
  for (std::string& token : tokens.texts) token = step.apply(token, tokens.time);
  return true;
}

bool Decoder::apply_step(const Metaspace& step, Tokens& tokens) {
  bool is_first = true;
  for (std::string& token : tokens.texts) {
    const std::string space = is_first && step.scheme != PrependScheme::kNever ? "" : " ";
    is_first = false;
    std::string text;
    size_t done = 0;
    for (size_t place = token.find(step.replacement); place != token.npos; place = token.find(step.replacement, done)) {
      text += token.substr(done, place - done) + space;
      done = place + step.replacement.size();
    }
    token = text + token.substr(done);
  }
  return true;
}

std::string Decoder::bytes_of(std::string token) const {
  if (joins_with_spaces_) return " " + token;
  if (token.empty()) return token;
  bool is_fused = false;  // what follows is about the whole text
  for (const auto& any : steps_) {
    if (std::holds_alternative<ByteLevel>(any)) {
      std::string bytes;
      append_bytes(bytes, token);
      return bytes;
    }
    if (std::holds_alternative<ByteFallback>(any)) {
      if (const auto byte = fallback_byte(token)) return {static_cast<char>(*byte)};
      continue;
    }
    is_fused |= std::holds_alternative<Fuse>(any);
    if (is_fused && !std::holds_alternative<Replacement>(any)) continue;
    // The second token of two is inside the text.
    Tokens tokens{{token, token}, PatternTime(2 * token.size())};
    std::visit([&](const auto& step) { apply_step(step, tokens); }, any);
    token = std::move(tokens.texts.back());
  }
  return token;
}

Decoded Decoder::apply(std::vector<std::string> texts) const {
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  Tokens tokens{std::move(texts), PatternTime(bytes)};
  bool complete = true;
  for (const auto& any : steps_) {
    complete = std::visit([&](const auto& step) { return apply_step(step, tokens); }, any) && complete;
  }
  return {join(tokens.texts, joins_with_spaces_ ? " " : ""), complete};
}

}  // namespace plimsoll::tokenize
