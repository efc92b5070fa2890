// Inputs of a T5: texts or ids, from the command line or a file.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

namespace plimsoll::app {

// The right answer to an input: a text, or its ids without an end.
using T5Target = std::variant<std::monostate, std::string, std::vector<int64_t>>;

// Input of a T5 and, where they are known, the input of its decoder and the right answer.
struct T5Example {
  std::vector<int64_t> input;
  std::vector<int64_t> decoder_input = {};  // empty: unknown
  T5Target target = {};

  bool has_target() const { return !std::holds_alternative<std::monostate>(target); }
};

// The ids in a member of an object, one or more below the vocabulary. Throws Error that opens with `where`.
std::vector<int64_t> ids_of_member(const nlohmann::json& object, const char* member, const std::string& where,
                                   int64_t vocabulary);

// Throws Error where a T5's directory has no spiece.model. purpose: what it is needed for.
void expect_tokenizer(const std::filesystem::path& directory, std::string_view purpose);

// The tokenizer of a model's directory, opened when a text needs it: inputs may be ids.
class T5Texts {
 public:
  T5Texts(std::filesystem::path directory, int64_t vocabulary)
      : directory_(std::move(directory)), vocabulary_(vocabulary) {}

  // `input` names a file or is a text. A file holds one text a line, or, as *.jsonl, an object {"text": ...} or
  // {"input_ids": [...]} a line. Throws Error that names file and line; UsageError for no input at all.
  std::vector<std::vector<int64_t>> read(const std::string& input);

  // The examples of a file as read() takes it; objects may have {"decoder_input_ids": [...]}, too, and a {"target": ...} that
  // is a text or ids.
  std::vector<T5Example> read_examples(const std::filesystem::path& file);

  // The target that the example has, with its end.
  std::vector<int64_t> target_ids(const T5Example& example);

  // Whether these ids, without an end, are the target that the example has; texts may differ in outer blanks.
  bool is_target(const T5Example& example, const std::vector<int64_t>& written);

  // A T5 has more ids than its tokenizer; those are left out.
  std::string decode(const std::vector<int64_t>& ids) {
    return tokenizer().decode_part(ids, tokenize::Specials::kWithout).text;
  }
  // Without a tokenizer ids stay ids.
  bool can_decode() const { return std::filesystem::exists(directory_ / "spiece.model"); }

 private:
  const tokenize::T5Tokenizer& tokenizer();
  T5Example example_of_line(const std::string& line, const std::string& where);

  std::filesystem::path directory_;
  int64_t vocabulary_;
  std::optional<tokenize::T5Tokenizer> tokenizer_;
};

// Rows [begin, end) of `texts`, padded to the longest.
struct T5Batch {
  at::Tensor ids;   // int64 [rows, longest]
  at::Tensor mask;  // bool [rows, longest], true where there is a token
};
T5Batch t5_batch(const std::vector<std::vector<int64_t>>& texts, size_t begin, size_t end, int64_t pad);

}  // namespace plimsoll::app
