#include "plimsoll/app/text_windows.h"

#include <algorithm>
#include <utility>

#include "plimsoll/app/expect_same.h"
#include "plimsoll/io/mapping_guard.h"

namespace plimsoll::app {

using nlohmann::json;

TextWindows::TextWindows(io::TokenStream stream, int64_t held_out) : stream_(std::move(stream)), held_out_(held_out) {}

TrainingBatch TextWindows::batch_of(const at::Tensor& windows) const {
  const int64_t context = stream_.context();
  return {.texts = {.tokens = windows.slice(1, 0, context), .targets = windows.slice(1, 1, context + 1), .lengths = {}},
          .weight = static_cast<double>(windows.size(0))};
}

TrainingStep TextWindows::next(const StepShape& shape) {
  const int64_t part = shape.batch / shape.ranks, rows = shape.batch * shape.passes;
  TrainingStep step{.passes = {}, .weight = static_cast<double>(rows), .tokens = rows * stream_.context()};
  for (int64_t pass = 0; pass < shape.passes; ++pass) {
    step.passes.push_back(batch_of(stream_.next(shape.batch).narrow(0, shape.rank * part, part)));
  }
  io::check_mapped_files();
  return step;
}

std::vector<TrainingBatch> TextWindows::held_out(int64_t batch) const {
  const int64_t count = std::min(held_out_, stream_.validation_windows());
  std::vector<TrainingBatch> batches;
  for (int64_t begin = 0; begin < count; begin += batch) {
    batches.push_back(batch_of(stream_.validation(begin, std::min(begin + batch, count), count)));
  }
  return batches;
}

json TextWindows::state() const {
  const io::TokenStream::Cursor cursor = stream_.cursor();
  return {{"data_bytes", stream_.tokens()},
          {"data_sha256", stream_.digest()},
          {"cursor", {{"epoch", cursor.epoch}, {"index", cursor.index}}}};
}

void TextWindows::restore(const json& state) {
  expect_same(state, "data_bytes", stream_.tokens());
  // Older checkpoints do not say it.
  if (state.contains("data_sha256")) expect_same(state, "data_sha256", stream_.digest());
  const json& cursor = state.at("cursor");
  stream_.seek({.epoch = cursor.at("epoch").get<int64_t>(), .index = cursor.at("index").get<int64_t>()});
}

}  // namespace plimsoll::app
