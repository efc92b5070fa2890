#include "plimsoll/app/text/parity_text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/app/binomial.h"
#include "plimsoll/app/error.h"
#include "plimsoll/app/text/encoded_text.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/io/mapping_guard.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

constexpr int64_t kUsualWindow = 512;
constexpr int64_t kRows = 64;  // of a vocabulary's log probabilities in FP64 at a time

json finite_or_null(double value) { return std::isfinite(value) ? json(value) : json(); }

// Sums over the tokens of one dtype.
class Sums {
 public:
  // logits, reference: fp32 [tokens, vocabulary]; targets: int64 [tokens].
  void add(const at::Tensor& logits, const at::Tensor& reference, const at::Tensor& targets) {
    finite_ = finite_ && logits.isfinite().all().item<bool>();
    for (int64_t begin = 0; begin < logits.size(0); begin += kRows) {
      const int64_t rows = std::min(kRows, logits.size(0) - begin);
      const at::Tensor got = at::log_softmax(logits.narrow(0, begin, rows), -1, at::kDouble);
      const at::Tensor want = at::log_softmax(reference.narrow(0, begin, rows), -1, at::kDouble);
      loss_ -= got.gather(1, targets.narrow(0, begin, rows).unsqueeze(1)).sum().item<double>();
      const at::Tensor divergence = (want.exp() * (want - got)).sum(-1);
      divergences_.insert(divergences_.end(), divergence.const_data_ptr<double>(),
                          divergence.const_data_ptr<double>() + rows);
      const at::Tensor first = want.argmax(-1);
      agreeing_ += got.argmax(-1).eq(first).sum().item<int64_t>();
      const at::Tensor likelier = got.gt(got.gather(1, first.unsqueeze(1))).sum(-1);
      among_five_ += likelier.lt(5).sum().item<int64_t>();
    }
  }

  void add_seconds(double seconds) { seconds_ += seconds; }

  json result() {
    const auto tokens = static_cast<int64_t>(divergences_.size());
    const auto count = static_cast<double>(tokens);
    const double divergence = std::accumulate(divergences_.begin(), divergences_.end(), 0.0);
    // NaN has no place in an order.
    if (std::isfinite(divergence)) std::sort(divergences_.begin(), divergences_.end());
    const auto quantile = [&](double share) {
      if (!std::isfinite(divergence)) return json();
      return json(divergences_[static_cast<size_t>(std::ceil(share * count)) - 1]);
    };
    const json agreement = binomial_json(agreeing_, tokens);
    return {{"finite", finite_},
            {"perplexity", finite_or_null(std::exp(loss_ / count))},
            {"logits_kl", finite_or_null(divergence / count)},
            {"logits_kl_p99", quantile(0.99)},
            {"logits_kl_p999", quantile(0.999)},
            {"top1_agreement", agreement.at("share")},
            {"top1_agreement_interval", agreement.at("interval")},
            {"top5_agreement", static_cast<double>(among_five_) / count},
            {"tokens_per_s", count / seconds_}};
  }

 private:
  bool finite_ = true;
  double loss_ = 0, seconds_ = 0;
  std::vector<double> divergences_;  // of each token
  int64_t agreeing_ = 0, among_five_ = 0;
};

double bytes_per_weight(torch::nn::Module& model) {
  double bytes = 0, count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    const auto elements = static_cast<double>(parameter.numel());
    const double held = elements * static_cast<double>(parameter.element_size());
    // A layer that holds codes has taken its parameter's memory: E4M3, and an FP32 scale a row.
    const bool has_codes = static_cast<double>(parameter.storage().nbytes()) < held;
    bytes += has_codes ? elements + static_cast<double>(parameter.size(0) * 4) : held;
    count += elements;
  }
  return bytes / count;
}

// fp32 [tokens, vocabulary].
at::Tensor logits_of(const TextModel& model, const at::Tensor& tokens) {
  std::optional<amp::Fp8Autocast> scope;
  if (model.recipe) scope.emplace(amp::Fp8AutocastOptions{.recipe = *model.recipe});
  return model.model->logits(tokens.unsqueeze(0)).squeeze(0);
}

}  // namespace

json text_parity(const TextParityOptions& options) {
  const at::NoGradGuard no_grad;
  std::optional<DirectoryWithOutlier> grafted;
  if (options.outlier) grafted.emplace(options.model, *options.outlier);
  const auto load = [&](models::WeightDtype dtype) {
    return load_text_model({.path = grafted ? grafted->path() : options.model, .dtype = dtype, .warn = options.warn});
  };
  const TextModel exact = load(models::WeightDtype::kFp32);
  const int64_t most = exact.model->context(), context = options.context.value_or(std::min(kUsualWindow, most));
  if (context > most) refuse("--context: expected at most the {} tokens that the model sees, got {}", most, context);
  const EncodedText text({options.data}, *exact.tokenizer);
  const int64_t count = std::min(options.tokens, text.count());
  if (count < 2) fail("{}: expected at least 2 tokens, got {}", options.data.native(), text.count());
  std::vector<TextModel> narrow;
  for (const models::WeightDtype dtype : options.dtypes) narrow.push_back(load(dtype));
  std::vector<Sums> sums(narrow.size());
  for (int64_t begin = 0; begin + 1 < count; begin += context) {
    std::vector<int64_t> ids(static_cast<size_t>(std::min(context + 1, count - begin)));
    text.read(begin, ids);
    const at::Tensor window = at::tensor(ids), inputs = window.slice(0, 0, -1), targets = window.slice(0, 1);
    const at::Tensor reference = logits_of(exact, inputs);
    for (size_t i = 0; i < narrow.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      const at::Tensor logits = logits_of(narrow[i], inputs);
      sums[i].add_seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      sums[i].add(logits, reference, targets);
    }
    io::check_mapped_files();
  }
  json result = {{"tokens", count - 1}, {"dtypes", json::object()}};
  for (size_t i = 0; i < sums.size(); ++i) {
    json& entry = result["dtypes"][std::string(recipe::name_of(models::kWeightDtypes, options.dtypes[i]))];
    entry = sums[i].result();
    entry["bytes_per_weight"] = bytes_per_weight(narrow[i].model->module());
  }
  return result;
}

}  // namespace plimsoll::app
