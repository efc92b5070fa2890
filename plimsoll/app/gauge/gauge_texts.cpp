#include "plimsoll/app/gauge/gauge_texts.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/t5/t5_inputs.h"
#include "plimsoll/app/text/encode_example.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/line_reader.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;
using Ids = std::vector<int64_t>;

class GaugeTextReader {
 public:
  explicit GaugeTextReader(const GaugeTexts& texts) : texts_(texts) {}

  Ids text(const std::string& line, const std::string& where) {
    return placed(where, [&] { return tokenizer().encode(line); });
  }

  Ids object(const std::string& line, const std::string& where) {
    const json object = io::parse_json(line, where);
    const tokenize::Fields fields(object, where);
    if (!fields.at("input_ids").is_null()) {
      for (const char* other : {"messages", "completion", "text"}) {
        if (!fields.at(other).is_null()) io::fail("{}: expected input_ids or {}, got both", where, other);
      }
      return ids_of_member(object, "input_ids", where, texts_.vocabulary);
    }
    return placed(where, [&] {
      const auto encoded = encoder().object(fields);
      if (!encoded) {
        io::fail("{}: expected input_ids, messages, prompt and completion, or text, got none of them", where);
      }
      return Ids(encoded->example.tokens.begin(), encoded->example.tokens.end());
    });
  }

 private:
  const tokenize::Tokenizer& tokenizer() {
    if (!tokenizer_) tokenizer_ = load_tokenizer(texts_.directory, texts_.vocabulary);
    return *tokenizer_;
  }

  ExampleEncoder& encoder() {
    if (!encoder_) encoder_.emplace(tokenizer(), texts_.directory, TrainOn::kAll);
    return *encoder_;
  }

  // Ids of `encode`, all in the vocabulary; its errors, with the place in front of them.
  template <class Encode>
  Ids placed(const std::string& where, const Encode& encode) {
    tokenizer();  // has errors of its own
    Ids ids;
    try {
      ids = encode();
    } catch (const io::Error& error) {
      const std::string text = error.what();
      io::fail("{}", text.starts_with(where) ? text : where + ": " + text);
    }
    for (const int64_t id : ids) {
      if (id < texts_.vocabulary) continue;
      fail("{}: expected tokens of the model's {}, got '{}', which is none", where, texts_.vocabulary,
           tokenizer().id_to_token(id).value_or(""));
    }
    return ids;
  }

  const GaugeTexts& texts_;
  std::unique_ptr<tokenize::Tokenizer> tokenizer_;
  std::optional<ExampleEncoder> encoder_;
};

}  // namespace

std::vector<Ids> read_gauge_texts(const GaugeTexts& texts) {
  const bool lines_are_json = texts.file.extension() == ".jsonl";
  GaugeTextReader reader(texts);
  std::vector<Ids> result;
  io::LineReader file(texts.file);
  std::string line;
  for (int64_t number = 1; file.next(line); ++number) {
    if (line.empty()) continue;
    const std::string where = io::compose("{}, line {}", texts.file.native(), number);
    Ids ids = lines_are_json ? reader.object(line, where) : reader.text(line, where);
    if (!ids.empty()) result.push_back(std::move(ids));
  }
  if (result.empty()) fail("{}: expected at least one line, got none", texts.file.native());
  return result;
}

}  // namespace plimsoll::app
