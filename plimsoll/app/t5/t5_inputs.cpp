#include "plimsoll/app/t5/t5_inputs.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plimsoll/app/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/line_reader.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

constexpr size_t kMostShown = 40;                   // characters of what was no id
constexpr int64_t kMaxExamples = int64_t{1} << 22;  // about 1 GB of memory, where all are empty

T5Target target_of(const json& object, const std::string& where, int64_t vocabulary) {
  const json& target = object.at("target");
  if (target.is_string()) return target.get<std::string>();
  std::vector<int64_t> ids = ids_of_member(object, "target", where, vocabulary);
  if (ids.back() == tokenize::T5Tokenizer::kEnd) ids.pop_back();
  return ids;
}

std::string_view without_outer_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlanks);
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// Whether a file is meant: a text may be too long for a path, or the name of a directory.
bool is_file(const std::string& input) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(input, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_directory(status);
}

}  // namespace

std::vector<int64_t> ids_of_member(const json& object, const char* member, const std::string& where,
                                   int64_t vocabulary) {
  const json& list = object.at(member);
  const auto is_id = [&](const json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocabulary);
  };
  const auto other = list.is_array() ? std::find_if_not(list.begin(), list.end(), is_id) : list.end();
  if (!list.is_array() || list.empty() || other != list.end()) {
    fail("{}: {}: expected an array of ids from 0 to {}, got {}", where, member, vocabulary - 1,
         !list.is_array() ? std::string(list.type_name())
         : list.empty()   ? "none"
                          : other->dump().substr(0, kMostShown));
  }
  return list.get<std::vector<int64_t>>();
}

void expect_tokenizer(const std::filesystem::path& directory, std::string_view purpose) {
  if (std::filesystem::exists(directory / "spiece.model")) return;
  fail("{}: expected spiece.model, found none, {}", directory.native(), purpose);
}

const tokenize::T5Tokenizer& T5Texts::tokenizer() {
  if (tokenizer_) return *tokenizer_;
  expect_tokenizer(directory_, "which has the ids of texts; an input may be ids, too (*.jsonl)");
  return tokenizer_.emplace(directory_, vocabulary_);
}

T5Example T5Texts::example_of_line(const std::string& line, const std::string& where) {
  const json object = io::parse_json(line, where);
  T5Example example;
  if (object.is_object() && object.contains("decoder_input_ids")) {
    example.decoder_input = ids_of_member(object, "decoder_input_ids", where, vocabulary_);
  }
  if (object.is_object() && object.contains("target")) example.target = target_of(object, where, vocabulary_);
  if (object.is_object() && object.contains("input_ids")) {
    if (object.contains("text")) fail("{}: expected a text or input_ids, got both", where);
    example.input = ids_of_member(object, "input_ids", where, vocabulary_);
  } else if (object.is_object() && object.contains("text") && object.at("text").is_string()) {
    example.input = tokenizer().encode(object.at("text").get<std::string>());
  } else {
    fail("{}: expected an object with a text or input_ids", where);
  }
  return example;
}

std::vector<T5Example> T5Texts::read_examples(const std::filesystem::path& path) {
  const bool lines_are_json = path.extension() == ".jsonl";
  std::vector<T5Example> examples;
  io::LineReader file(path);
  std::string line;
  for (int64_t number = 1; file.next(line); ++number) {
    if (number > kMaxExamples) fail("{}: expected at most {} lines, got more", path.native(), kMaxExamples);
    const std::string where = fmt::format("{}, line {}", path.native(), number);
    examples.push_back(lines_are_json ? example_of_line(line, where) : T5Example{.input = tokenizer().encode(line)});
  }
  if (examples.empty()) fail("{}: expected at least one line, got none", path.native());
  return examples;
}

std::vector<std::vector<int64_t>> T5Texts::read(const std::string& input) {
  if (!is_file(input)) {
    if (input.ends_with(".jsonl")) refuse("{}: expected a file, found none", input);
    return {tokenizer().encode(input)};
  }
  std::vector<std::vector<int64_t>> texts;
  for (T5Example& example : read_examples(input)) texts.push_back(std::move(example.input));
  return texts;
}

std::vector<int64_t> T5Texts::target_ids(const T5Example& example) {
  if (const auto* text = std::get_if<std::string>(&example.target)) return tokenizer().encode(*text);
  std::vector<int64_t> ids = std::get<std::vector<int64_t>>(example.target);
  ids.push_back(tokenize::T5Tokenizer::kEnd);
  return ids;
}

bool T5Texts::is_target(const T5Example& example, const std::vector<int64_t>& written) {
  if (const auto* ids = std::get_if<std::vector<int64_t>>(&example.target)) return written == *ids;
  return without_outer_blanks(decode(written)) == without_outer_blanks(std::get<std::string>(example.target));
}

T5Batch t5_batch(const std::vector<std::vector<int64_t>>& texts, size_t begin, size_t end, int64_t pad) {
  size_t longest = 0;
  for (size_t row = begin; row < end; ++row) longest = std::max(longest, texts[row].size());
  const std::vector<int64_t> sizes = {static_cast<int64_t>(end - begin), static_cast<int64_t>(longest)};
  T5Batch batch{at::full(sizes, pad, at::kLong), at::zeros(sizes, at::kBool)};
  for (size_t row = begin; row < end; ++row) {
    const size_t first = (row - begin) * longest;
    std::copy(texts[row].begin(), texts[row].end(), batch.ids.mutable_data_ptr<int64_t>() + first);
    std::fill_n(batch.mask.mutable_data_ptr<bool>() + first, texts[row].size(), true);
  }
  return batch;
}

}  // namespace plimsoll::app
