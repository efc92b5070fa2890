// Functions that each instruction set supplies: the work on one part of the batch and heads, in scratch of the thread.
// Private to this folder.
#pragma once

#include "plimsoll/kernels/attention/attention.h"

namespace plimsoll::kernels {

// Batch and group whose keys and values the same thread works on next; they may be fetched ahead. -1: none.
struct NextKeys {
  int64_t batch = -1, group = -1;
};

// Queries of one group's heads: a multiple of kAttentionQueries from a multiple of it, or up to the last.
inline constexpr int64_t kAttentionQueries = 64;
struct ForwardPart {
  int64_t batch, group, query_begin, query_end;
  NextKeys next = {};
};

// Batch elements and groups, each worked on in order.
struct BackwardPart {
  int64_t batch_begin, batch_end, group_begin, group_end;
  NextKeys next = {};
};

// Up to this many queries are multiplied with k and v as they stream by: first all scores, in parts of so many keys,
// then the values, in parts of their channels. Sums have the terms and the order that they have with more queries.
inline constexpr int64_t kFewQueries = 8, kFewKeys = 512;
struct FewKeysPart {
  int64_t batch, group, key_begin;  // a multiple of kFewKeys
};
struct FewChannelsPart {
  int64_t batch, group, begin, end;  // channels of the values; multiples of 16, or the last
};

// All few queries of a group; no dropout. scratch: FP32 values that a part needs, 64-byte aligned. size: floats of a
// group's exponents.
struct AttentionFew {
  int64_t (*scratch)(const AttentionForward& args);
  int64_t (*size)(const AttentionForward& args);
  void (*scores)(const AttentionForward& args, const FewKeysPart& part, float* exponents, float* scratch);
  void (*values)(const AttentionForward& args, const FewChannelsPart& part, const float* exponents, float* scratch);
};

struct AttentionIsa {
  const AttentionFew* few;
  int64_t (*forward_scratch)(const AttentionForward& args, int64_t queries);
  void (*forward)(const AttentionForward& args, const ForwardPart& part, float* scratch);
  int64_t (*backward_scratch)(const AttentionBackward& args);
  void (*backward)(const AttentionBackward& args, const BackwardPart& part, float* scratch);
};

extern const AttentionIsa kAttentionPortable, kAttentionAvx2, kAttentionAvx512;
// For bf16 operands.
extern const AttentionIsa kAttentionAvx512Bf16, kAttentionAmx;
extern const AttentionFew kAttentionFewAmx;

}  // namespace plimsoll::kernels
