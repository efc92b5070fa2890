#include "plimsoll/tokenize/sentencepiece/t5_tokenizer.h"

#include <array>
#include <charconv>
#include <utility>

#include "plimsoll/io/error.h"
#include "plimsoll/io/filesystem_errors.h"
#include "plimsoll/io/json.h"

namespace plimsoll::tokenize {
namespace {

constexpr int64_t kSentinels = 100;
constexpr std::string_view kSentinelStart = "<extra_id_";

// The count in tokenizer_config.json; without one, as many as T5 has if they fit.
int64_t sentinels_of(const std::filesystem::path& directory, int64_t pieces, int64_t vocabulary) {
  const std::filesystem::path path = directory / "tokenizer_config.json";
  const int64_t fitting = pieces + kSentinels <= vocabulary ? kSentinels : 0;
  if (!io::with_our_errors([&] { return std::filesystem::exists(path); })) return fitting;
  const nlohmann::json config = io::read_json(path);
  const auto found = config.find("extra_ids");
  if (!config.is_object() || found == config.end()) return fitting;
  if (!found->is_number_unsigned()) io::fail("{}: extra_ids: expected an integer of at least 0", path.native());
  const auto count = found->get<uint64_t>();
  if (count > static_cast<uint64_t>(vocabulary)) {
    io::fail("{}: extra_ids: expected at most the model's vocabulary of {}, got {}", path.native(), vocabulary, count);
  }
  return static_cast<int64_t>(count);
}

}  // namespace

T5Tokenizer::T5Tokenizer(const std::filesystem::path& directory, int64_t vocabulary)
    : pieces_(directory / "spiece.model"), sentinels_(sentinels_of(directory, pieces_.size(), vocabulary)) {
  constexpr int64_t kFewest = 3;
  if (pieces_.size() < kFewest) {
    io::fail("{}: expected pieces for pad, </s> and <unk> at least, got {}", (directory / "spiece.model").native(),
             pieces_.size());
  }
  if (pieces_.size() + sentinels_ > vocabulary) {
    io::fail("{}: expected at most the model's vocabulary of {} tokens, got {} pieces and {} sentinels",
             (directory / "spiece.model").native(), vocabulary, pieces_.size(), sentinels_);
  }
}

std::optional<T5Tokenizer::Special> T5Tokenizer::special_at(std::string_view text) const {
  const std::array<std::pair<std::string_view, int64_t>, 3> kinds = {
      {{"<pad>", kPad}, {"</s>", kEnd}, {"<unk>", pieces_.unknown_id()}}};
  for (const auto& [name, id] : kinds) {
    if (text.starts_with(name)) return Special{name.size(), id};
  }
  if (!text.starts_with(kSentinelStart)) return std::nullopt;
  const char* digits = text.data() + kSentinelStart.size();
  const char* end = text.data() + text.size();
  int64_t number = -1;
  const auto [stop, error] = std::from_chars(digits, end, number);
  if (error != std::errc()) return std::nullopt;  // there may be no digit to look at
  const bool canonical = stop == digits + 1 || *digits != '0';
  if (!canonical || stop == end || *stop != '>' || number < 0 || number >= sentinels_) {
    return std::nullopt;
  }
  return Special{static_cast<size_t>(stop - text.data()) + 1, pieces_.size() + sentinels_ - 1 - number};
}

std::vector<int64_t> T5Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<int64_t> ids;
  size_t begin = 0;  // of what stands between two special tokens
  const auto append_until = [&](size_t end) {
    const std::vector<int64_t> more = pieces_.encode(text.substr(begin, end - begin));
    ids.insert(ids.end(), more.begin(), more.end());
  };
  for (size_t place = text.find('<'); place != text.npos; place = text.find('<', place)) {
    if (const auto special = special_at(text.substr(place))) {
      append_until(place);
      ids.push_back(special->id);
      begin = place += special->bytes;
    } else {
      ++place;
    }
  }
  append_until(text.size());
  if (specials == Specials::kWith) ids.push_back(kEnd);
  return ids;
}

Decoded T5Tokenizer::decode_part(std::span<const int64_t> ids, Specials specials) const {
  Decoded decoded;
  std::vector<int64_t> run;  // pieces with no special token between them
  const auto end_run = [&] {
    decoded.text += pieces_.decode(run);
    run.clear();
  };
  for (const int64_t id : ids) {
    const bool is_piece = id >= 0 && id < pieces_.size() && id != kPad && id != kEnd && id != pieces_.unknown_id();
    if (is_piece) run.push_back(id);
    if (is_piece || specials == Specials::kWithout) continue;
    end_run();
    decoded.text += id_to_token(id).value_or("");
  }
  end_run();
  decoded.complete = !decoded.text.ends_with("\xEF\xBF\xBD");  // what byte pieces give before their last one
  return decoded;
}

std::string T5Tokenizer::part_bytes_of(int64_t id) const {
  const std::optional<char> byte = pieces_.byte_of(id);
  return byte ? std::string(1, *byte) : "";
}

std::optional<int64_t> T5Tokenizer::token_to_id(std::string_view token) const {
  const auto special = special_at(token);
  return special && special->bytes == token.size() ? special->id : pieces_.find(token);
}

std::optional<std::string> T5Tokenizer::id_to_token(int64_t id) const {
  if (id < 0 || id >= size()) return std::nullopt;
  if (id < pieces_.size()) return pieces_.piece(id);
  return io::compose("{}{}>", kSentinelStart, size() - 1 - id);
}

}  // namespace plimsoll::tokenize
