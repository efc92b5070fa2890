#include <algorithm>

#include "plimsoll/kernels/embedding/embedding_loops.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/scratch.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {
namespace {

constexpr int64_t kGrain = 16384;  // elements below which another thread costs more than it gives

const EmbeddingLoops& loops_in_force() {
  return runtime::pick(kEmbeddingLoopsPortable, kEmbeddingLoopsAvx2, kEmbeddingLoopsAvx512);
}

int64_t grain(int64_t dim) { return std::max<int64_t>(kGrain / std::max<int64_t>(dim, 1), 1); }

// The places in order of their tokens, and among equal tokens in their own.
struct Sorted {
  const int64_t* order;  // [places]
  const int64_t* start;  // [vocabulary + 1]: token v has order[start[v]] .. order[start[v + 1] - 1]
};
Sorted sort_by_token(const int64_t* tokens, int64_t places, int64_t vocabulary) {
  auto* start = static_cast<int64_t*>(
      runtime::scratch(runtime::ScratchSlot::kReduce, static_cast<size_t>(vocabulary + 2 + places) * sizeof(int64_t)));
  int64_t* order = start + vocabulary + 2;
  // Counts two places up; as places are dealt out, each entry moves on to the start of the token after it.
  std::fill_n(start, vocabulary + 2, int64_t{0});
  for (int64_t i = 0; i < places; ++i) ++start[tokens[i] + 2];
  for (int64_t token = 2; token < vocabulary + 2; ++token) start[token] += start[token - 1];
  for (int64_t i = 0; i < places; ++i) order[start[tokens[i] + 1]++] = i;
  return {order, start};
}

// Tokens are dealt to threads by their work: one row to write and start[v + 1] - start[v] rows to read. The first token
// whose work starts at `unit` or later.
int64_t token_at(const Sorted& sorted, int64_t vocabulary, int64_t unit) {
  int64_t low = 0, high = vocabulary;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (middle + sorted.start[middle] < unit) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void token_gradient(const EmbeddingBackward& args, const EmbeddingLoops& loops) {
  const int64_t places = args.shape.batch * args.shape.seq, vocabulary = args.vocabulary;
  const Sorted sorted = sort_by_token(args.tokens, places, vocabulary);
  runtime::parallel_for(places + vocabulary, grain(args.shape.dim), [&](int64_t begin, int64_t end) {
    const int64_t last = token_at(sorted, vocabulary, end);
    for (int64_t token = token_at(sorted, vocabulary, begin); token < last; ++token) {
      const int64_t first = sorted.start[token], count = sorted.start[token + 1] - first;
      loops.sum_places(args, {.order = sorted.order + first, .count = count}, args.token_grad, token);
    }
  });
}

void position_gradient(const EmbeddingBackward& args, const EmbeddingLoops& loops) {
  const auto [batch, seq, dim] = args.shape;
  runtime::parallel_for(seq, grain(dim * std::max<int64_t>(batch, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) {
      loops.sum_places(args, {.first = position, .step = args.shape.seq, .count = args.shape.batch}, args.position_grad,
                       position);
    }
  });
}

}  // namespace

void embedding_forward(const EmbeddingForward& args) {
  const EmbeddingLoops& loops = loops_in_force();
  runtime::parallel_for(args.shape.batch * args.shape.seq, grain(args.shape.dim),
                        [&](int64_t begin, int64_t end) { loops.gather(args, begin, end); });
}

void embedding_backward(const EmbeddingBackward& args) {
  const EmbeddingLoops& loops = loops_in_force();
  if (args.token_grad) token_gradient(args, loops);
  if (args.position_grad) position_gradient(args, loops);
}

}  // namespace plimsoll::kernels
