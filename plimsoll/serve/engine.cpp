#include "plimsoll/serve/engine.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <future>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/io/error.h"
#include "plimsoll/io/mapping_guard.h"
#include "plimsoll/models/next_token.h"
#include "plimsoll/ops/torch_internals/lack_of_memory.h"
#include "plimsoll/runtime/philox.h"
#include "plimsoll/runtime/threads.h"
#include "plimsoll/watch/audit.h"

namespace plimsoll::serve {
namespace {

using models::TextEnd;

constexpr int64_t kUsualContext = 2048;  // of a model that sees any number of tokens

// GiB with five digits that are enough for so many bytes.
std::string gibibytes_for(int64_t bytes) {
  constexpr double kUnits = 1e5;
  return io::compose("{:.5f}", std::ceil(static_cast<double>(bytes) / (1 << 30) * kUnits) / kUnits);
}

// Whether the codes of a token's inputs depend on that token alone: its reply must not depend on what is read with it.
bool codes_tokens_alone(const recipe::Recipe& recipe) {
  const recipe::OperandRecipe input = recipe.operand(recipe::Role::kInput, recipe::GemmKind::kOutput);
  if (input.source != recipe::ScaleSource::kCurrent) return true;
  return input.granularity.block_rows == 1 &&
         (input.format != format::Format::kE2m1 || !format::is_nvfp4(input.scaling));
}

int64_t context_of(const models::PagedModel& model, int64_t wanted) {
  const int64_t most = model.context();
  TORCH_CHECK_VALUE(wanted <= most, "serve: expected a max_context of at most the ", most,
                    " tokens that the model sees, got ", wanted);
  if (wanted > 0) return wanted;
  return most == models::kAnyContext ? kUsualContext : most;
}

std::vector<LikelyToken> likeliest(std::span<const float> logits, int64_t count,
                                   const models::LogProbabilities& probabilities) {
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int64_t token) { return logits[static_cast<size_t>(token)]; };
  const auto end = order.begin() + std::min(count, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), end, order.end(),
                    [&](int64_t a, int64_t b) { return logit(a) > logit(b) || (logit(a) == logit(b) && a < b); });
  std::vector<LikelyToken> tokens;
  for (auto token = order.begin(); token != end; ++token) tokens.push_back({*token, probabilities.of(*token)});
  return tokens;
}

// Words of an exception, as an error of the server has them.
std::string words_of(const std::exception& error) {
  if (ops::is_lack_of_memory(error)) return "expected enough memory, got none from the system";
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
}

// The tokens that the text's format allows, and where it is complete, those that end it; empty: all.
TokenMask allowed_tokens(const ServedText& text) {
  const Request& request = text.request;
  if (request.format == nullptr) return {};
  return request.format->allowed(text.json, request.ends);
}

std::shared_ptr<models::PagedModel> given(std::shared_ptr<models::PagedModel> model) {
  TORCH_CHECK_VALUE(model != nullptr, "serve: expected a model, got nullptr");
  return model;
}

}  // namespace

// The token that follows a text.
struct Engine::Choice {
  std::optional<ReplyToken> token = {};  // none: the logits are not finite, or there is an error
  std::string error = {};
  bool lacks_memory = false;

  // Throws nothing, for a thread of parallel_for calls it.
  static Choice of(const ServedText& text, std::span<const float> logits) {
    try {
      return found(text, logits);
    } catch (const std::exception& error) {
      return {.error = words_of(error), .lacks_memory = ops::is_lack_of_memory(error)};
    }
  }

 private:
  static Choice found(const ServedText& text, std::span<const float> logits) {
    if (!models::are_finite(logits)) return {};
    const Request& request = text.request;
    std::optional<double> uniform;
    if (request.sampling.temperature > 0) {
      const runtime::Philox philox{.seed = static_cast<uint64_t>(request.seed),
                                   .step = static_cast<uint64_t>(request.choice)};
      uniform = philox.word(static_cast<uint64_t>(text.new_tokens())) * 0x1p-32;
    }
    const TokenMask allowed = allowed_tokens(text);
    ReplyToken token;
    token.token.id = models::next_token(logits, {.text = text.continued(),
                                                 .new_tokens = text.new_tokens(),
                                                 .ends = request.ends,
                                                 .rules = request.rules,
                                                 .sampling = request.sampling,
                                                 .allowed = allowed,
                                                 .uniform = uniform});
    token.ends_text = std::ranges::find(request.ends, token.token.id) != request.ends.end();
    if (request.top_log_probabilities) {
      const models::LogProbabilities probabilities(logits);
      token.token.log_probability = probabilities.of(token.token.id);
      token.top = likeliest(logits, *request.top_log_probabilities, probabilities);
    }
    return {.token = std::move(token)};
  }
};

// A text that a step has read to its end.
struct Engine::Writer {
  ServedText* text;
  Choice choice = {};
};

Engine::Engine(std::shared_ptr<models::PagedModel> model, const EngineOptions& options)
    : model_(given(std::move(model))), options_(options), context_(context_of(*model_, options.max_context)) {
  TORCH_CHECK_VALUE(options.max_batch > 0 && options.max_batch <= models::kMostTextRows / 2,
                    "serve: expected a max_batch of 1 to ", models::kMostTextRows / 2, ", got ", options.max_batch);
  TORCH_CHECK_VALUE(options.queue > 0, "serve: expected a queue of 1 or more, got ", options.queue);
  TORCH_CHECK_VALUE(context_ >= kLeastContext, "serve: expected a max_context, and a model that sees, ", kLeastContext,
                    " tokens or more, for a prompt and its reply, got ", context_);
  TORCH_CHECK_VALUE(!options.recipe || codes_tokens_alone(*options.recipe),
                    "serve: expected a recipe whose scales belong to single tokens, for replies depend on nothing else "
                    "that is read, got ",
                    options.recipe->name(), ", whose inputs have one for the tensor; `plimsoll generate` runs it");
  models::TokenCache cache = model_->make_cache({.capacity = 1, .format = options.cache});
  {
    std::optional<amp::Fp8Autocast> scope;
    if (options_.recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *options_.recipe});
    vocabulary_ = model_->prepare(cache);
  }
  stats_.page_bytes = models::TokenPages::page_bytes(cache);
  const std::optional<int64_t> start = model_->decoder_start();
  const int64_t pages = options.memory / stats_.page_bytes;
  const int64_t longest = models::pages_of(context_) + (start ? 1 : 0);  // a decoder's text begins at a page of its own
  const int64_t least = longest * stats_.page_bytes;
  TORCH_CHECK_VALUE(pages >= longest, "serve: expected a memory of ", least, " bytes (", gibibytes_for(least),
                    " GiB) or more for the keys and values of ", context_, " tokens, got ", options.memory);
  scheduler_.emplace(SchedulerOptions{.max_batch = options.max_batch, .pages = pages, .decoder_start = start},
                     models::TokenPages(cache, pages));
  stats_.texts = scheduler_->counts();
  runtime::end_threads();  // of loading; those of the engine's thread are the only ones from here on
  std::promise<void> ready;
  std::future<void> started = ready.get_future();
  thread_ =
      std::thread([this, ready = std::move(ready), threads = runtime::threads(), audit = watch::auditing()]() mutable {
        const watch::AuditRecording recording(audit);
        runtime::set_threads(threads);
        try {
          runtime::start_threads();
        } catch (const std::runtime_error&) {
          ready.set_exception(std::current_exception());
          return;
        }
        ready.set_value();
        if (watches()) {
          const std::lock_guard<std::mutex> lock(mutex_);
          session_.emplace(watch::SessionOptions{.mode = options_.watch});
        }
        run();
        const std::lock_guard<std::mutex> lock(mutex_);
        session_.reset();
      });
  try {
    started.get();
  } catch (const std::runtime_error&) {
    thread_.join();
    throw;
  }
}

Engine::~Engine() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Engine::check(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  TORCH_CHECK_VALUE(prompt > 0, "serve: expected a prompt of one token or more, got none");
  for (const int64_t id : request.prompt) {
    TORCH_CHECK_VALUE(id >= 0 && id < vocabulary_, "serve: expected tokens from 0 to ", vocabulary_ - 1, ", got ", id);
  }
  TORCH_CHECK_VALUE(request.max_new_tokens > 0, "serve: expected max_new_tokens of 1 or more, got ",
                    request.max_new_tokens);
  TORCH_CHECK_VALUE(request.max_new_tokens <= context_ - prompt, "serve: expected a prompt and max_new_tokens of ",
                    context_, " tokens together, got ", prompt, " and ", request.max_new_tokens);
  TORCH_CHECK_VALUE(request.choice >= 0 && request.top_log_probabilities.value_or(0) >= 0,
                    "serve: expected choice and top_log_probabilities >= 0, got ", request.choice, " and ",
                    request.top_log_probabilities.value_or(0));
  TORCH_CHECK_VALUE(request.format == nullptr || request.format->tokens().size() == vocabulary_,
                    "serve: expected a format of ", vocabulary_, " tokens, got one of ",
                    request.format == nullptr ? 0 : request.format->tokens().size());
  TORCH_CHECK_VALUE(request.adapter.empty() || options_.adapters.contains(request.adapter),
                    "serve: expected the name of an adapter that is served, got '", request.adapter, "'");
  nn::check(request.sampling);
  models::check(request.rules, vocabulary_);
}

std::vector<std::string> Engine::adapters() const {
  std::vector<std::string> names;
  for (const auto& [name, adapters] : options_.adapters) names.push_back(name);
  return names;
}

ServedAdapter Engine::adapter_of(const Request& request) const {
  const auto found = options_.adapters.find(request.adapter);
  if (found == options_.adapters.end()) return {};
  return {.adapters = found->second.get(), .number = 1 + std::distance(options_.adapters.begin(), found)};
}

std::shared_ptr<Reply> Engine::submit(Request request) {
  check(request);
  auto reply = std::make_shared<Reply>();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto served = stats_.texts.running + stats_.texts.waiting + static_cast<int64_t>(submitted_.size());
    if (stops_) throw QueueFull("the server stops");
    if (served >= places()) throw QueueFull(c10::str(served, " requests are served already"));
    submitted_.emplace_back(std::move(request), reply);
    ++stats_.requests;
  }
  changed_.notify_all();
  return reply;
}

EngineStats Engine::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  EngineStats stats = stats_;
  stats.texts.waiting += static_cast<int64_t>(submitted_.size());
  return stats;
}

std::vector<watch::Record> Engine::watched() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return session_ ? session_->slots().records() : std::vector<watch::Record>();
}

at::Tensor Engine::read(std::span<const models::TextTokens> texts) {
  std::optional<amp::Fp8Autocast> scope;
  if (options_.recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *options_.recipe});
  at::Tensor logits = model_->extend_texts(texts).contiguous();
  io::check_mapped_files();
  return logits;
}

void Engine::run() {
  for (;;) {
    std::vector<std::pair<Request, std::shared_ptr<Reply>>> submitted;
    std::vector<StepPart> parts;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stops_) break;
      submitted.swap(submitted_);
      stats_.texts.waiting += static_cast<int64_t>(submitted.size());
    }
    for (auto& [request, reply] : submitted) {
      const ServedAdapter adapter = adapter_of(request);
      try {
        scheduler_->add(std::move(request), reply, adapter);
      } catch (const std::exception& error) {
        reply->finish(TextEnd::kInterrupted, words_of(error));
      }
    }
    try {
      parts = plan();
      if (!parts.empty()) take(parts);
    } catch (const std::exception& error) {
      scheduler_->fail(words_of(error));
    }
    std::unique_lock<std::mutex> lock(mutex_);
    stats_.texts = scheduler_->counts();
    if (!parts.empty()) {
      ++stats_.steps;
    } else {
      changed_.wait(lock, [&] { return stops_ || !submitted_.empty(); });
    }
  }
  scheduler_->fail("");
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [request, reply] : submitted_) reply->finish(TextEnd::kInterrupted);
  submitted_.clear();
}

std::vector<StepPart> Engine::plan() {
  for (;;) {
    try {
      std::vector<StepPart> parts = scheduler_->plan();
      // Rows of an adapter follow one another, so that its products are of all of them.
      std::ranges::stable_sort(parts, {}, [](const StepPart& part) { return part.text->adapter.number; });
      return parts;
    } catch (const std::exception& error) {
      if (!ops::is_lack_of_memory(error)) throw;
      scheduler_->retreat(words_of(error));
    }
  }
}

void Engine::take(const std::vector<StepPart>& parts) {
  std::vector<int64_t> lengths;
  std::vector<Writer> writers;
  try {
    for (const StepPart& part : parts) lengths.push_back(part.text->cache.length());
    writers = step(parts);
  } catch (const std::exception& error) {
    if (!ops::is_lack_of_memory(error)) throw;
    for (size_t i = 0; i < lengths.size(); ++i) parts[i].text->cache.keep(lengths[i]);
    return scheduler_->retreat(parts, words_of(error));
  }
  for (Writer& writer : writers) write(*writer.text, std::move(writer.choice));
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.written_tokens += std::ssize(writers);
}

std::vector<Engine::Writer> Engine::step(const std::vector<StepPart>& parts) {
  std::vector<models::TextTokens> texts;
  std::vector<Writer> writers;
  for (const auto& [text, tokens] : parts) {
    const bool writes = tokens == text->unread();
    const std::span<const int64_t> all = text->text;
    texts.push_back({text->cache, all.subspan(static_cast<size_t>(text->cache.length()), static_cast<size_t>(tokens)),
                     writes, text->adapter.adapters, text->encoder_tokens});
    if (writes) writers.push_back({.text = text});
  }
  const at::Tensor logits = read(texts);
  runtime::parallel_for(static_cast<int64_t>(writers.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const std::span<const float> row(logits.const_data_ptr<float>() + i * vocabulary_,
                                       static_cast<size_t>(vocabulary_));
      Writer& writer = writers[static_cast<size_t>(i)];
      writer.choice = Choice::of(*writer.text, row);
    }
  });
  if (std::ranges::any_of(writers, [](const Writer& writer) { return writer.choice.lacks_memory; })) {
    throw std::bad_alloc();
  }
  return writers;
}

std::optional<TextEnd> Engine::end_after(ServedText& text, const ReplyToken& token) {
  if (token.ends_text) return TextEnd::kToken;
  if (text.request.format != nullptr) {
    text.json = text.request.format->after(std::move(text.json), token.token.id);
    if (JsonMachine::is_ended(text.json)) return TextEnd::kStop;
  }
  return text.new_tokens() == text.request.max_new_tokens ? std::optional(TextEnd::kLength) : std::nullopt;
}

void Engine::write(ServedText& text, Choice choice) {
  const std::shared_ptr<Reply> reply = text.reply;
  const auto finish = [&](TextEnd end, std::string error = {}) {
    scheduler_->end(text);
    reply->finish(end, std::move(error));
  };
  if (!choice.token) return finish(choice.error.empty() ? TextEnd::kNotFinite : TextEnd::kInterrupted, choice.error);
  std::optional<TextEnd> end;
  try {
    text.text.push_back(choice.token->token.id);
    end = end_after(text, *choice.token);
    choice.token->is_last = end.has_value();
    reply->push(std::move(*choice.token));
  } catch (const std::exception& error) {
    return finish(TextEnd::kInterrupted, words_of(error));
  }
  if (end) finish(*end);
}

}  // namespace plimsoll::serve
