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

  // The pairs of a text and a group, text after text: the first that thread `index` of so many takes. Each thread's take
  // about as long.
  int64_t first_of(int64_t index, int64_t threads) const;
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
  // Texts of one token each, from `text` on.
  int64_t texts_alike(int64_t text) const;
  Heads columns(const Part& part, int64_t head, int64_t count) const;
  Heads prepared(Heads heads, const StepNorm& norm, const HeadScratch& scratch) const;
  // Place in a cache: a batch element or a page, and a token there.
  struct Place {
    int64_t batch, token;
  };
  Place place_of(const Part& part, int64_t row, const StepPlaces& places) const;
  void write(const Heads& heads, const Part& part, const StepPlaces& places) const;

  const StepAttention& attention_;
  const char* projected_;
  char* read_;
  int64_t channels_, size_;
};

}  // namespace plimsoll::models
