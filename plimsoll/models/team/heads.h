// The heads of an attention that one thread of a team computes.
#pragma once

#include "plimsoll/models/team/step.h"

namespace plimsoll::models {

// Memory of one thread for its queries and keys, [rows, heads, channels] each in the dtype of the step.
struct HeadScratch {
  char* normed = nullptr;
  char* turned = nullptr;
  float* norm_weight = nullptr;  // [the widest norm's columns, twice]
};

class StepHeads {
 public:
  // projected: what attention.in made, [rows, columns]; read [rows, heads * channels].
  StepHeads(const StepAttention& attention, const char* projected, char* read);

  // Pairs of a text and a group, text after text, of which threads take each a range.
  int64_t count() const {
    const kernels::AttentionShape& shape = attention_.call.shape;
    return (apart() ? static_cast<int64_t>(attention_.texts.size()) : shape.batch) * shape.groups;
  }
  // Queries, keys and values of pairs `begin` to `end`: their norms, turns, places in the cache, and what they read.
  void attend(int64_t begin, int64_t end, const HeadScratch& scratch) const;

 private:
  struct Part {
    int64_t text, texts, group, groups;
  };
  void attend(const Part& part, const HeadScratch& scratch) const;
  // [rows, heads, channels], strides in elements.
  struct Heads {
    const char* data;
    int64_t first_row, rows, count, row_stride;
  };
  bool apart() const { return !attention_.texts.empty(); }
  const StepText& text(const Part& part) const { return attention_.texts[static_cast<size_t>(part.text)]; }
  Heads columns(const Part& part, int64_t head, int64_t count) const;
  Heads prepared(Heads heads, const StepNorm& norm, const HeadScratch& scratch) const;
  // first: of the rows, the one that `places` are of.
  void write(const Heads& heads, int64_t group, const StepPlaces& places, int64_t first) const;

  const StepAttention& attention_;
  const char* projected_;
  char* read_;
  int64_t channels_, size_;
};

}  // namespace plimsoll::models
