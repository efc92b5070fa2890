#include "plimsoll/app/finetune/finetune_data.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "plimsoll/app/error.h"
#include "plimsoll/app/text/text_model.h"
#include "plimsoll/app/train/first_model.h"
#include "plimsoll/io/permutation.h"

namespace plimsoll::app {
namespace {

constexpr int64_t kUsualRow = 1024;  // of a model that sees more
// The round of the seed's permutations that draws the held-out examples: no epoch.
constexpr uint64_t kHeldOutRound = ~uint64_t{0};

// Takes a share of the examples out, by chance, one or more of two or more; both parts keep the files' order.
std::vector<Example> take_share(std::vector<Example>& examples, double share, uint64_t seed) {
  const auto count = static_cast<int64_t>(examples.size());
  if (share == 0 || count < 2) return {};
  const auto wanted = static_cast<int64_t>(std::llround(share * static_cast<double>(count)));
  const int64_t taken = std::clamp<int64_t>(wanted, 1, count - 1);
  const io::Permutation order(count, seed, kHeldOutRound);
  std::vector<bool> is_taken(examples.size());
  for (int64_t i = 0; i < taken; ++i) is_taken[static_cast<size_t>(order(i))] = true;
  std::vector<Example> held_out, rest;
  for (size_t i = 0; i < examples.size(); ++i) (is_taken[i] ? held_out : rest).push_back(std::move(examples[i]));
  examples = std::move(rest);
  return held_out;
}

}  // namespace

int64_t finetuning_context(const TrainOptions& run) {
  const int64_t most = config_of_directory(run.source).context;
  const int64_t context = run.context.value_or(std::min(most, kUsualRow));
  if (context < 2 || context > most) {
    refuse("--context: expected 2 to the {} tokens that the model sees, got {}", most, context);
  }
  return context;
}

std::unique_ptr<const tokenize::Tokenizer> tokenizer_of(const FinetuneOptions& options) {
  return load_tokenizer(options.run.source, config_of_directory(options.run.source).vocabulary);
}

FinetuneData read_finetune_data(const FinetuneOptions& options, const tokenize::Tokenizer& tokenizer) {
  ReadExamples input{.data = options.run.data,
                     .model = options.run.source,
                     .context = finetuning_context(options.run),
                     .train_on = options.train_on,
                     .overlong = options.overlong};
  Examples training = read_examples(input, tokenizer), held_out;
  const auto seed = static_cast<uint64_t>(options.run.seed);
  if (options.eval_data.empty()) {
    held_out.all = take_share(training.all, options.eval_share, seed);
  } else {
    input.data = options.eval_data;
    held_out = read_examples(input, tokenizer);
  }
  if (training.all.empty()) {
    if (training.skipped == 0) fail("--data: expected an example or more, got none");
    fail("--data: expected examples with a token to learn within the {} tokens of --context, got {} without",
         input.context, training.skipped);
  }
  FinetuneData data{.examples = nullptr,
                    .training = static_cast<int64_t>(training.all.size()),
                    .held_out = static_cast<int64_t>(held_out.all.size()),
                    .cut = training.cut + held_out.cut,
                    .skipped = training.skipped + held_out.skipped,
                    .joined = training.joined + held_out.joined,
                    .counted = training.counted(),
                    .context = input.context};
  for (const Example& example : training.all) data.tokens += example.read();
  data.examples =
      std::make_unique<PackedExamples>(std::move(training.all), std::move(held_out.all),
                                       Packing{.context = input.context, .packs = options.pack, .seed = seed});
  return data;
}

}  // namespace plimsoll::app
