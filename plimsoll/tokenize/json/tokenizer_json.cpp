#include "plimsoll/tokenize/json/tokenizer_json.h"

#include <algorithm>
#include <mutex>

#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/json.h"
#include "plimsoll/tokenize/fields.h"
#include "plimsoll/tokenize/json/added_tokens.h"
#include "plimsoll/tokenize/json/bpe.h"
#include "plimsoll/tokenize/json/decoder.h"
#include "plimsoll/tokenize/json/normalizer.h"
#include "plimsoll/tokenize/json/post_processor.h"
#include "plimsoll/tokenize/json/pre_tokenizer.h"
#include "plimsoll/tokenize/json/word_cache.h"
#include "plimsoll/tokenize/utf8.h"

namespace plimsoll::tokenize {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
// Memory that a thread's next text finds: as much as a word of some ten thousand characters takes.
constexpr size_t kMostKeptBytes = size_t{1} << 20;

Fields model_of(const Fields& file) {
  Fields model = file.object("model");
  // Old files have no type.
  if (!model.at("type").is_null() && model.text("type") != "BPE") model.refuse("type", "BPE");
  return model;
}

}  // namespace

// The memory that one thread needs to encode; kept for the next one.
struct TokenizerJson::Workplace {
  BpeScratch scratch;
  WordCache cache;
};

struct TokenizerJson::Pipeline {
  explicit Pipeline(const Fields& file)
      : normalizer(file.at("normalizer"), file.name_of("normalizer")),
        pre_tokenizer(file.at("pre_tokenizer"), file.name_of("pre_tokenizer")),
        model(model_of(file)),
        added(file, model.vocabulary(), normalizer),
        post_processor(file.at("post_processor"), file.name_of("post_processor"), size()),
        decoder(file.at("decoder"), file.name_of("decoder")) {}

  int64_t size() const { return static_cast<int64_t>(std::max(model.vocabulary().end(), added.end())); }

  void encode_segment(const Piece& piece, MadeTexts& made, Workplace& workplace, std::vector<int64_t>& ids) const;
  void encode_word(std::string_view word, Workplace& workplace, std::vector<int64_t>& ids) const;

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;

  std::mutex mutex;  // of what follows
  std::vector<std::unique_ptr<Workplace>> free_workplaces;
};

// A workplace as long as it is needed.
class TokenizerJson::Borrowed {
 public:
  explicit Borrowed(Pipeline& pipeline) : pipeline_(pipeline) {
    const std::lock_guard lock(pipeline_.mutex);
    if (pipeline_.free_workplaces.empty()) {
      workplace_ = std::make_unique<Workplace>();
    } else {
      workplace_ = std::move(pipeline_.free_workplaces.back());
      pipeline_.free_workplaces.pop_back();
    }
  }
  ~Borrowed() {
    if (workplace_->scratch.bytes() > kMostKeptBytes) workplace_->scratch = {};
    const std::lock_guard lock(pipeline_.mutex);
    pipeline_.free_workplaces.push_back(std::move(workplace_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Workplace& get() const { return *workplace_; }

 private:
  Pipeline& pipeline_;
  std::unique_ptr<Workplace> workplace_;
};

TokenizerJson::TokenizerJson(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  const nlohmann::json file = io::read_json(path);
  pipeline_ = std::make_unique<Pipeline>(Fields(file, path.native()));
  read_config(directory / "tokenizer_config.json");
}

TokenizerJson::~TokenizerJson() = default;

void TokenizerJson::read_config(const std::filesystem::path& path) {
  if (!io::with_our_errors([&] { return std::filesystem::exists(path); })) return;
  const nlohmann::json object = io::read_json(path);
  const Fields config(object, path.native());
  const auto id_of = [&](const char* key) -> std::optional<int64_t> {
    const nlohmann::json& value = config.at(key);
    if (value.is_null()) return std::nullopt;
    const std::string token = value.is_object() ? config.object(key).text("content") : config.text(key);
    const auto id = token_to_id(token);
    if (!id) config.refuse(key, "a token of tokenizer.json");
    return id;
  };
  bos_ = id_of("bos_token");
  eos_ = id_of("eos_token");
}

int64_t TokenizerJson::size() const { return pipeline_->size(); }

void TokenizerJson::Pipeline::encode_word(std::string_view word, Workplace& workplace,
                                          std::vector<int64_t>& ids) const {
  const bool bytes = pre_tokenizer.gives_bytes();
  if (!WordCache::fits(word)) return model.encode(word, bytes, workplace.scratch, ids);
  const WordCache::Key key = WordCache::key_of(word);
  WordCache::Entry& entry = workplace.cache.entry_of(key);
  if (entry.key == key) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const size_t begin = ids.size();
  model.encode(word, bytes, workplace.scratch, ids);
  WordCache::keep(entry, key, std::span(ids).subspan(begin));
}

void TokenizerJson::Pipeline::encode_segment(const Piece& piece, MadeTexts& made, Workplace& workplace,
                                             std::vector<int64_t>& ids) const {
  const Piece normalized = normalizer.apply(piece, made);
  std::vector<Segment> segments;
  if (added.any(true)) {
    segments = added.cut(normalized, true);
  } else {
    segments.push_back({normalized, std::nullopt});
  }
  for (const Segment& segment : segments) {
    if (segment.id) {
      ids.push_back(*segment.id);
      continue;
    }
    std::vector<Piece> words{segment.piece};
    pre_tokenizer.apply(words, made);
    for (const Piece& word : words) encode_word(word.text, workplace, ids);
  }
}

std::vector<int64_t> TokenizerJson::encode(std::string_view text, Specials specials) const {
  if (text.size() > kMaxTextBytes)
    io::fail("tokenizer: expected a text of at most {} bytes, got {}", kMaxTextBytes, text.size());
  if (const size_t valid = valid_bytes(text); valid < text.size()) {
    io::fail("tokenizer: expected a text in UTF-8, got another byte at {}", valid);
  }
  const Borrowed workplace(*pipeline_);
  MadeTexts made(text.size());
  std::vector<int64_t> ids;
  const bool with = specials == Specials::kWith;
  if (with) ids = pipeline_->post_processor.before;
  for (const Segment& segment : pipeline_->added.cut({text, true}, false)) {
    if (segment.id) {
      ids.push_back(*segment.id);
    } else {
      pipeline_->encode_segment(segment.piece, made, workplace.get(), ids);
    }
  }
  const std::vector<int64_t>& after = pipeline_->post_processor.after;
  if (with) ids.insert(ids.end(), after.begin(), after.end());
  return ids;
}

std::optional<std::string> TokenizerJson::shown(int64_t id, Specials specials) const {
  if (id < 0 || id >= size()) return std::nullopt;
  const auto number = static_cast<uint32_t>(id);
  const AddedToken* added = pipeline_->added.find(number);
  if (added == nullptr && !pipeline_->model.vocabulary().contains(number)) return std::nullopt;
  std::string token = added != nullptr ? added->shown : std::string(pipeline_->model.vocabulary().token(number));
  if (specials == Specials::kWithout && pipeline_->added.is_special(token)) return std::nullopt;
  return token;
}

Decoded TokenizerJson::decode_part(std::span<const int64_t> ids, Specials specials) const {
  std::vector<std::string> tokens;
  for (const int64_t id : ids) {
    if (std::optional<std::string> token = shown(id, specials)) tokens.push_back(std::move(*token));
  }
  return pipeline_->decoder.apply(std::move(tokens));
}

std::string TokenizerJson::bytes_of(int64_t id) const {
  std::optional<std::string> token = shown(id, Specials::kWithout);
  return token ? pipeline_->decoder.bytes_of(std::move(*token)) : "";
}

std::optional<int64_t> TokenizerJson::token_to_id(std::string_view token) const {
  if (const AddedToken* added = pipeline_->added.find(token)) return added->id;
  const auto id = pipeline_->model.vocabulary().find(token);
  return id ? std::optional<int64_t>(*id) : std::nullopt;
}

std::optional<std::string> TokenizerJson::id_to_token(int64_t id) const {
  if (id < 0 || id >= size()) return std::nullopt;
  const auto number = static_cast<uint32_t>(id);
  if (const AddedToken* added = pipeline_->added.find(number)) return added->content;
  if (!pipeline_->model.vocabulary().contains(number)) return std::nullopt;
  return std::string(pipeline_->model.vocabulary().token(number));
}

}  // namespace plimsoll::tokenize
