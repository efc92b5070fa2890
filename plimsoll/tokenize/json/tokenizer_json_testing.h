// For tests: small tokenizer.json files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "plimsoll/io/testing.h"
#include "plimsoll/tokenize/json/tokenizer_json.h"

namespace plimsoll::tokenize {

// A file without steps around this model.
inline nlohmann::json file_of(const nlohmann::json& vocabulary, const nlohmann::json& merges) {
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

inline nlohmann::json added_token(const std::string& content, int64_t id,
                                  const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json token = {{"id", id},        {"content", content}, {"special", false},   {"single_word", false},
                          {"lstrip", false}, {"rstrip", false},    {"normalized", false}};
  token.update(changes);
  return token;
}

inline nlohmann::json sequence_of(const char* list, const nlohmann::json& steps) {
  return {{"type", "Sequence"}, {list, steps}};
}

// A tokenizer of a file's text, written to a directory.
inline TokenizerJson load_text(const io::TemporaryDirectory& directory, const std::string& text) {
  io::write_plainly(directory / "tokenizer.json", text);
  return TokenizerJson(directory.path());
}

inline TokenizerJson load(const nlohmann::json& file) {
  const io::TemporaryDirectory directory;
  return load_text(directory, file.dump());
}

using Ids = std::vector<int64_t>;

}  // namespace plimsoll::tokenize
