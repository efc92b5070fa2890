#include "plimsoll/app/finetune/read_examples.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "plimsoll/io/error.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/line_reader.h"
#include "plimsoll/io/regular_file.h"
#include "plimsoll/io/text_files.h"
#include "plimsoll/tokenize/fields.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using tokenize::Fields;
using Encoded = ExampleEncoder::Encoded;

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

void check_utf8(std::string_view text, const std::string& place) {
  const size_t valid = tokenize::valid_bytes(text);
  if (valid < text.size()) io::fail("{}: expected UTF-8, got another byte after {} bytes", place, valid);
}

class Reader {
 public:
  Reader(const ReadExamples& input, const tokenize::Tokenizer& tokenizer)
      : input_(input), encoder_(tokenizer, input.model, input.train_on) {}

  Examples operator()() {
    for (const fs::path& file : io::find_text_files(input_.data)) {
      const bool has_lines = file.extension() == ".jsonl" || file.extension() == ".json";
      has_lines ? read_lines(file) : read_text(file);
    }
    return std::move(examples_);
  }

 private:
  void read_lines(const fs::path& file) {
    io::LineReader lines(file);
    int64_t number = 0;
    for (std::string line; lines.next(line);) {
      const std::string place = io::compose("{}:{}", file.native(), ++number);
      check_utf8(line, place);
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      add(in_place(place, [&] { return encoded(Fields(io::parse_json(line, place), place)); }), place);
    }
  }

  // Errors of `encode`, with the place in front of them.
  template <class Encode>
  Encoded in_place(const std::string& place, const Encode& encode) {
    try {
      return encode();
    } catch (const io::Error& error) {
      const std::string text = error.what();
      io::fail("{}", text.starts_with(place) ? text : place + ": " + text);
    }
  }

  Encoded encoded(const Fields& fields) {
    if (auto encoded = encoder_.object(fields)) return std::move(*encoded);
    io::fail("{}: expected messages, prompt and completion, or text, got none of them", fields.name());
  }

  void add(Encoded encoded, const std::string& place) {
    Example& example = encoded.example;
    example.place = place;
    if (!end_at_last_counted(example)) {
      io::fail("{}: expected a token to learn, such as of an assistant's message, got none", place);
    }
    examples_.joined += encoded.joined;
    if (static_cast<int64_t>(example.tokens.size()) > input_.context && !shorten(example)) return;
    examples_.all.push_back(std::move(example));
  }

  // Tokens behind the last one that counts change nothing. False where none counts.
  static bool end_at_last_counted(Example& example) {
    const auto last = std::find(example.counts.rbegin(), example.counts.rend(), uint8_t{1});
    const auto size = static_cast<size_t>(std::distance(last, example.counts.rend()));
    example.tokens.resize(size);
    example.counts.resize(size);
    return size > 0;
  }

  // False for an example that is left out.
  bool shorten(Example& example) {
    if (input_.overlong == Overlong::kError) {
      io::fail("{}: expected at most the {} tokens of the context, got {}", example.place, input_.context,
               example.tokens.size());
    }
    example.tokens.resize(static_cast<size_t>(input_.context));
    example.counts.resize(example.tokens.size());
    const bool is_cut = input_.overlong == Overlong::kCut && end_at_last_counted(example);
    ++(is_cut ? examples_.cut : examples_.skipped);
    return is_cut;
  }

  void read_text(const fs::path& file) {
    const std::string text = io::read_file(file, kMaxTextBytes);
    check_utf8(text, file.native());
    const Example whole = in_place(file.native(), [&] { return encoder_.text(text); }).example;
    // The last token of a piece is read first in the next one, which predicts all that follows it.
    const auto step = static_cast<size_t>(input_.context - 1), size = whole.tokens.size();
    for (size_t begin = 0; begin + 1 < size; begin += step) {
      const auto first = static_cast<std::ptrdiff_t>(begin),
                 end = static_cast<std::ptrdiff_t>(std::min(begin + step + 1, size));
      Example piece{.tokens = {whole.tokens.begin() + first, whole.tokens.begin() + end},
                    .counts = {whole.counts.begin() + first, whole.counts.begin() + end},
                    .place = file.native()};
      piece.counts[0] = 0;
      examples_.all.push_back(std::move(piece));
    }
  }

  const ReadExamples& input_;
  ExampleEncoder encoder_;
  Examples examples_;
};

}  // namespace

Examples read_examples(const ReadExamples& input, const tokenize::Tokenizer& tokenizer) {
  return Reader(input, tokenizer)();
}

}  // namespace plimsoll::app
