#include "plimsoll/app/logprobs.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/text/encoded_text.h"
#include "plimsoll/io/json.h"
#include "plimsoll/io/line_reader.h"
#include "plimsoll/io/mapping_guard.h"

namespace plimsoll::app {
namespace {

constexpr int64_t kUsualLogprobsWindow = 512;

// A part of the text: the model reads all of its ids but the last, and says what follows each.
struct Window {
  int64_t begin = 0;
  std::vector<int64_t> ids;

  int64_t count() const { return static_cast<int64_t>(ids.size()) - 1; }
};

std::vector<Window> windows_of(const EncodedText& text, int64_t count, int64_t context) {
  std::vector<Window> windows;
  for (int64_t begin = 0; begin + 1 < count; begin += context) {
    Window window{.begin = begin,
                  .ids = std::vector<int64_t>(static_cast<size_t>(std::min(context + 1, count - begin)))};
    text.read(begin, window.ids);
    windows.push_back(std::move(window));
  }
  return windows;
}

class LogprobsReader {
 public:
  LogprobsReader(const TextModel& model, const std::optional<recipe::Recipe>& recipe) : model_(*model.model) {
    if (recipe) scope_.emplace(amp::Fp8AutocastOptions{.recipe = *recipe});
  }

  // fp32 [tokens, vocabulary] of each of the windows.
  std::vector<at::Tensor> read(LogprobsAs as, std::span<const Window> windows) {
    if (as == LogprobsAs::kServe) return read_together(windows);
    std::vector<at::Tensor> logits;
    for (const Window& window : windows) {
      const at::Tensor inputs = at::tensor(window.ids).slice(0, 0, -1).unsqueeze(0);
      logits.push_back((as == LogprobsAs::kTrain     ? model_.logits(inputs)
                        : as == LogprobsAs::kPrefill ? read_at_once(inputs)
                                                     : read_in_turn(inputs))
                           .squeeze(0));
    }
    return logits;
  }

 private:
  at::Tensor read_at_once(const at::Tensor& inputs) {
    models::TokenCache cache = model_.make_cache({.capacity = inputs.size(1)});
    return model_.extend(inputs, cache, {.all_logits = true});
  }

  at::Tensor read_in_turn(const at::Tensor& inputs) {
    models::TokenCache cache = model_.make_cache({.capacity = inputs.size(1)});
    std::vector<at::Tensor> rows;
    for (int64_t i = 0; i < inputs.size(1); ++i) rows.push_back(model_.extend(inputs.slice(1, i, i + 1), cache));
    return at::cat(rows, 1);
  }

  std::vector<at::Tensor> read_together(std::span<const Window> windows) {
    std::vector<models::TokenCache> caches;
    int64_t longest = 0;
    for (const Window& window : windows) {
      caches.push_back(model_.make_cache({.capacity = window.count()}));
      longest = std::max(longest, window.count());
    }
    convert_weights();
    std::vector<std::vector<at::Tensor>> rows(windows.size());
    for (int64_t i = 0; i < longest; ++i) {
      std::vector<models::TextTokens> texts;
      std::vector<size_t> places;
      for (size_t window = 0; window < windows.size(); ++window) {
        if (i >= windows[window].count()) continue;
        texts.push_back({caches[window], std::span(windows[window].ids).subspan(static_cast<size_t>(i), 1)});
        places.push_back(window);
      }
      const at::Tensor logits = model_.extend_texts(texts);
      for (size_t row = 0; row < places.size(); ++row) rows[places[row]].push_back(logits[static_cast<int64_t>(row)]);
    }
    std::vector<at::Tensor> result;
    for (const std::vector<at::Tensor>& each : rows) result.push_back(at::stack(each));
    return result;
  }

  // As a server does before its first text.
  void convert_weights() {
    if (std::exchange(converted_, true)) return;
    models::TokenCache cache = model_.make_cache({.capacity = 1});
    model_.extend(at::zeros({1, 1}, at::kLong), cache);
  }

  models::LanguageModel& model_;
  std::optional<amp::Fp8Autocast> scope_;
  bool converted_ = false;
};

void add_logprobs(const Window& window, const at::Tensor& logits, std::vector<TokenLogprob>& result) {
  constexpr int64_t kWideRows = 64;  // in FP64 at a time
  const at::Tensor targets = at::tensor(window.ids).slice(0, 1).unsqueeze(1);
  for (int64_t begin = 0; begin < window.count(); begin += kWideRows) {
    const int64_t rows = std::min(kWideRows, window.count() - begin);
    const at::Tensor all = at::log_softmax(logits.narrow(0, begin, rows), -1, at::kDouble);
    const at::Tensor each = all.gather(1, targets.narrow(0, begin, rows)).contiguous();
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t place = begin + row + 1;
      result.push_back(
          {window.begin + place, window.ids[static_cast<size_t>(place)], each.const_data_ptr<double>()[row]});
    }
  }
}

std::vector<TokenLogprob> read_logprobs(const std::filesystem::path& path) {
  io::LineReader file(path);
  std::vector<TokenLogprob> tokens;
  for (std::string line; file.next(line);) {
    const nlohmann::json row = io::parse_json(line, path.native());
    const auto has = [&](const char* member) { return row.is_object() && row.contains(member); };
    const bool is_token =
        has("token") && row["token"].is_number_integer() && has("id") && row["id"].is_number_integer();
    if (!is_token || !has("log_probability") ||
        !(row["log_probability"].is_number() || row["log_probability"].is_null())) {
      fail("{}: expected lines with token, id and log_probability, got another file", path.native());
    }
    const nlohmann::json& value = row["log_probability"];
    tokens.push_back({row["token"].get<int64_t>(), row["id"].get<int64_t>(),
                      value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>()});
  }
  if (tokens.empty()) fail("{}: expected lines of log probabilities, got none", path.native());
  return tokens;
}

}  // namespace

std::vector<TokenLogprob> logprobs(const LogprobsOptions& options) {
  const at::NoGradGuard no_grad;
  TextModelOptions loading = options.model;
  loading.coded = models::CodedWeights::kHeld;
  const TextModel model = load_text_model(loading);
  const int64_t most = model.model->context(), context = options.context.value_or(std::min(kUsualLogprobsWindow, most));
  if (context > most) refuse("--context: expected at most the {} tokens that the model sees, got {}", most, context);
  const EncodedText text({options.data}, *model.tokenizer);
  const int64_t count = std::min(options.tokens, text.count());
  if (count < 2) fail("{}: expected at least 2 tokens, got {}", options.data.native(), text.count());
  const std::vector<Window> windows = windows_of(text, count, context);
  const size_t together = options.as == LogprobsAs::kServe ? static_cast<size_t>(options.batch) : 1;
  LogprobsReader reader(model, options.recipe ? options.recipe : model.recipe);
  std::vector<TokenLogprob> result;
  for (size_t begin = 0; begin < windows.size(); begin += together) {
    const auto some = std::span(windows).subspan(begin, std::min(together, windows.size() - begin));
    const std::vector<at::Tensor> logits = reader.read(options.as, some);
    for (size_t i = 0; i < some.size(); ++i) add_logprobs(some[i], logits[i], result);
    io::check_mapped_files();
  }
  return result;
}

LogprobsDifference logprobs_difference(const std::filesystem::path& first, const std::filesystem::path& second) {
  const std::vector<TokenLogprob> a = read_logprobs(first), b = read_logprobs(second);
  if (a.size() != b.size()) {
    fail("{}: expected the {} tokens of {}, got {}", second.native(), a.size(), first.native(), b.size());
  }
  LogprobsDifference result{.tokens = static_cast<int64_t>(a.size())};
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].token != b[i].token || a[i].id != b[i].id) {
      fail("{}: expected token {} as in {}, id {}, got token {}, id {}", second.native(), a[i].token, first.native(),
           a[i].id, b[i].token, b[i].id);
    }
    const double left = a[i].log_probability, right = b[i].log_probability;
    if (left == right || (std::isnan(left) && std::isnan(right))) continue;
    const double difference = std::abs(left - right);
    if (!result.first) result.first = a[i].token;
    ++result.different;
    result.mean += difference / static_cast<double>(a.size());
    if (!(difference <= result.largest)) result.largest = difference;  // NaN stays
  }
  return result;
}

}  // namespace plimsoll::app
