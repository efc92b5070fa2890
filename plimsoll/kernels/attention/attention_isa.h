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

// Up to this many queries are multiplied with k and v as they stream by, without packing, in parts of so many keys.
inline constexpr int64_t kFewQueries = 8, kFewKeys = 1024;
struct FewPart {
  int64_t batch, group, key_begin;
};

// Partial sums of a part, a row for each query of the group's heads.
struct FewSums {
  float* output;  // [rows][value channels, up to a multiple of 16], not yet divided by sum
  float* top;     // [rows], in units of log 2
  float* sum;     // [rows], of the weights relative to top
};

struct AttentionIsa {
  // FP32 values of scratch that a part needs, 64-byte aligned.
  int64_t (*forward_scratch)(const AttentionForward& args, int64_t queries);
  void (*forward)(const AttentionForward& args, const ForwardPart& part, float* scratch);
  // All queries of a group; no dropout. few_size floats of sums a part; those of a group's parts follow each other.
  int64_t (*few_queries_scratch)(const AttentionForward& args);
  int64_t (*few_size)(const AttentionForward& args);
  void (*few_queries)(const AttentionForward& args, const FewPart& part, float* sums, float* scratch);
  void (*few_queries_finish)(const AttentionForward& args, int64_t batch, int64_t group, float* sums, int64_t parts);
  int64_t (*backward_scratch)(const AttentionBackward& args);
  void (*backward)(const AttentionBackward& args, const BackwardPart& part, float* scratch);
};

extern const AttentionIsa kAttentionPortable, kAttentionAvx2, kAttentionAvx512;
// For bf16 operands; streams few queries as kAttentionAvx512 does.
extern const AttentionIsa kAttentionAvx512Bf16;

}  // namespace plimsoll::kernels
