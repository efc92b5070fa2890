#include "plimsoll/app/finetune/packed_examples.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

#include "plimsoll/app/expect_same.h"
#include "plimsoll/io/permutation.h"
#include "plimsoll/io/sha256.h"

namespace plimsoll::app {
namespace {

using nlohmann::json;

Rows rows_of(const std::vector<Example>& examples, const Packing& packing) {
  if (packing.packs) {
    std::vector<int64_t> lengths;
    for (const Example& example : examples) lengths.push_back(example.read());
    return pack_rows(lengths, packing.context);
  }
  Rows rows;
  for (size_t i = 0; i < examples.size(); ++i) rows.push_back({i});
  return rows;
}

template <class T>
void add(io::Sha256& digest, const std::vector<T>& values) {
  const auto size = static_cast<int64_t>(values.size());
  digest.add(std::as_bytes(std::span(&size, 1)));
  digest.add(std::as_bytes(std::span(values)));
}

TrainingBatch batch_of(const std::vector<const Example*>& texts) {
  int64_t total = 0, counted = 0;
  for (const Example* text : texts) total += text->read();
  TrainingBatch batch;
  batch.texts.tokens = at::empty({1, total}, at::kLong);
  batch.texts.targets = at::full({1, total}, models::kNoTarget, at::kLong);
  auto *token = batch.texts.tokens.mutable_data_ptr<int64_t>(),
       *target = batch.texts.targets.mutable_data_ptr<int64_t>();
  for (const Example* text : texts) {
    std::copy(text->tokens.begin(), text->tokens.end() - 1, token);
    for (size_t i = 1; i < text->tokens.size(); ++i) {
      if (text->counts[i] != 0) target[i - 1] = text->tokens[i];
    }
    token += text->read();
    target += text->read();
    counted += text->counted();
    batch.texts.lengths.push_back(text->read());
  }
  batch.weight = static_cast<double>(counted);
  return batch;
}

}  // namespace

PackedExamples::PackedExamples(std::vector<Example> training, std::vector<Example> held_out, const Packing& packing)
    : training_(std::move(training)),
      held_out_(std::move(held_out)),
      packing_(packing),
      rows_(rows_of(training_, packing)),
      held_out_rows_(rows_of(held_out_, packing)) {
  io::Sha256 digest;
  for (const std::vector<Example>* examples : {&training_, &held_out_}) {
    for (const Example& example : *examples) {
      add(digest, example.tokens);
      add(digest, example.counts);
    }
  }
  for (const Rows* rows : {&rows_, &held_out_rows_}) {
    for (const std::vector<size_t>& row : *rows) add(digest, row);
  }
  digest_ = digest.digits();
}

PackedExamples::Texts PackedExamples::texts_of(const std::vector<Example>& examples, const std::vector<size_t>& row) {
  Texts texts;
  for (const size_t text : row) texts.push_back(&examples[text]);
  return texts;
}

PackedExamples::Texts PackedExamples::next_row() {
  if (index_ == rows()) {
    ++epoch_;
    index_ = 0;
  }
  const io::Permutation order(rows(), packing_.seed, static_cast<uint64_t>(epoch_));
  return texts_of(training_, rows_[static_cast<size_t>(order(index_++))]);
}

std::vector<const Example*> PackedExamples::first(size_t count) const {
  const io::Permutation order(rows(), packing_.seed, 0);
  Texts examples;
  for (int64_t i = 0; i < rows() && examples.size() < count; ++i) {
    const Texts row = texts_of(training_, rows_[static_cast<size_t>(order(i))]);
    examples.insert(examples.end(), row.begin(), row.end());
  }
  examples.resize(std::min(examples.size(), count));
  return examples;
}

std::vector<std::vector<int64_t>> PackedExamples::prompts(size_t count) const {
  constexpr int64_t kOfText = 16;  // tokens, where all of them count
  std::vector<std::vector<int64_t>> prompts;
  const std::vector<Example>& examples = held_out_.empty() ? training_ : held_out_;
  for (size_t i = 0; i < std::min(count, examples.size()); ++i) {
    const Example& example = examples[i];
    const int64_t before = std::find(example.counts.begin(), example.counts.end(), uint8_t{1}) - example.counts.begin();
    const int64_t size = before > 1 ? before : std::min(kOfText, example.read());
    prompts.emplace_back(example.tokens.begin(), example.tokens.begin() + size);
  }
  return prompts;
}

TrainingStep PackedExamples::next(const StepShape& shape) {
  const int64_t part = shape.batch / shape.ranks;
  TrainingStep step;
  for (int64_t pass = 0; pass < shape.passes; ++pass) {
    Texts own;
    for (int64_t i = 0; i < shape.batch; ++i) {
      const Texts row = next_row();
      for (const Example* text : row) {
        step.weight += static_cast<double>(text->counted());
        step.tokens += text->read();
      }
      if (i / part == shape.rank) own.insert(own.end(), row.begin(), row.end());
    }
    step.passes.push_back(batch_of(own));
  }
  return step;
}

std::vector<TrainingBatch> PackedExamples::held_out(int64_t batch) const {
  std::vector<TrainingBatch> batches;
  Texts texts;
  for (size_t row = 0; row < held_out_rows_.size(); ++row) {
    const Texts more = texts_of(held_out_, held_out_rows_[row]);
    texts.insert(texts.end(), more.begin(), more.end());
    const bool is_full = (static_cast<int64_t>(row) + 1) % batch == 0 || row + 1 == held_out_rows_.size();
    if (is_full) batches.push_back(batch_of(std::exchange(texts, {})));
  }
  return batches;
}

json PackedExamples::state() const {
  return {{"data_sha256", digest_}, {"cursor", {{"epoch", epoch_}, {"index", index_}}}};
}

void PackedExamples::restore(const json& state) {
  if (state.at("data_sha256") != digest_) {
    refuse(
        "checkpoint: expected the examples and rows of the run, which --data, --context, --pack, --train-on, --overlong, "
        "--eval-data, --eval-share and the tokenizer make, got others");
  }
  const json& cursor = state.at("cursor");
  const auto epoch = cursor.at("epoch").get<int64_t>(), index = cursor.at("index").get<int64_t>();
  if (epoch < 0 || index < 0 || index > rows()) {
    fail("checkpoint: expected a place within {} rows, got {} of epoch {}", rows(), index, epoch);
  }
  epoch_ = epoch;
  index_ = index;
}

}  // namespace plimsoll::app
