#include "plimsoll/app/text/text_writer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/text/stop_texts.h"
#include "plimsoll/models/next_token.h"
#include "plimsoll/runtime/philox.h"
#include "plimsoll/tokenize/decode_stream.h"

namespace plimsoll::app {
namespace {

std::function<std::vector<uint64_t>(int64_t)> allowed_by(const TextFormat* format) {
  if (format == nullptr) return {};
  return [format](int64_t) { return format->allowed(); };
}

}  // namespace

TextWriter::TextWriter(const TextModel& model, WritingOptions options)
    : model_(model),
      options_(std::move(options)),
      decoding_(*model.model, {.sampling = options_.sampling,
                               .uniform =
                                   [this](int64_t, int64_t) {
                                     const runtime::Philox philox{.seed = static_cast<uint64_t>(options_.seed)};
                                     return philox.word(draws_++) * 0x1p-32;
                                   },
                               .rules = options_.rules,
                               .eos_token_ids = model.ends,
                               .cache = options_.cache,
                               .allowed = allowed_by(options_.format.get())}) {}

WrittenText TextWriter::write(const std::vector<int64_t>& prompt, const TextObserver& observer) {
  return write(prompt, observer, options_.max_new_tokens);
}

WrittenText TextWriter::write(const std::vector<int64_t>& prompt, const TextObserver& observer, int64_t limit) {
  if (prompt.empty()) refuse("prompt: expected at least one token, got none");
  limit = std::min(limit, options_.max_new_tokens);
  const auto context = static_cast<size_t>(model_.model->context());
  WrittenText written;
  tokenize::DecodeStream stream(*model_.tokenizer);
  StopTexts stops(options_.stops);
  const auto show = [&](const std::string& text) {
    written.text += text;
    if (observer.on_text && !text.empty()) observer.on_text(text);
  };
  const auto hear = [&](const models::NewToken& token) {
    ++written.tokens;
    if (observer.on_token) observer.on_token({token.id, models::log_probability(token.logits, token.id)});
    if (token.ends_text) return false;
    show(stops.add(stream.next(token.id)));
    const bool is_whole = options_.format != nullptr && options_.format->add(token.id);
    return is_whole || stops.reached();
  };
  if (options_.format != nullptr) options_.format->begin();
  std::vector<int64_t> text = prompt;
  for (bool is_prompt = true; written.tokens < limit && written.end == TextEnd::kLength; is_prompt = false) {
    if (text.size() > context)
      text.erase(text.begin(), text.end() - static_cast<int64_t>(std::max<size_t>(1, context / 2)));
    const auto room = static_cast<int64_t>(context - text.size()) + 1;
    const int64_t unread = decoding_.begin({text}, std::min(limit - written.tokens, room));
    if (is_prompt) written.read_tokens = unread;
    while (!decoding_.done() && written.end == TextEnd::kLength) {
      if (observer.interrupted && observer.interrupted()) {
        written.end = TextEnd::kInterrupted;
        break;
      }
      std::optional<amp::Fp8Autocast> scope;
      if (model_.recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *model_.recipe});
      decoding_.step(hear);
      written.end = decoding_.end(0);
    }
    text = decoding_.text(0);
  }
  if (!stops.reached()) show(stops.add(stream.finish()));
  if (!stops.reached()) show(stops.finish());
  return written;
}

}  // namespace plimsoll::app
