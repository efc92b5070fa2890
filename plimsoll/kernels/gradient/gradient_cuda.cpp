#include "plimsoll/kernels/gradient/gradient_cuda.h"

#include "plimsoll/kernels/gradient/gradient_launch.h"

namespace plimsoll::kernels {

GradientMemory gradient_memory(const GradientPass& args) {
  const int64_t blocks = gradient_blocks(args);
  return {.findings = gradient_groups(blocks) * static_cast<int64_t>(sizeof(GradientGroupSum)),
          .scratch = blocks * static_cast<int64_t>(sizeof(GradientBlockSum))};
}

void gradient_pass(const GradientPass& args, void* memory, const cuda::Stream& stream) {
  const int64_t blocks = gradient_blocks(args);
  auto* const groups = static_cast<GradientGroupSum*>(memory);
  auto* const first = reinterpret_cast<GradientBlockSum*>(groups + (memory == nullptr ? 0 : gradient_groups(blocks)));
  const char* const kernel = memory == nullptr ? "gradient_scale" : args.write ? "gradient_write" : "gradient_read";
  GradientBlockSum* sums = memory == nullptr ? nullptr : first;
  for (const GradientTable& table : gradient_tables(args)) {
    cuda::launch(stream, kernel, gradient_launch(table, stream.multiprocessors), table, args.scale, sums);
    if (sums != nullptr) sums += table.pieces;
  }
  if (memory == nullptr) return;
  const GradientBlockSum* const added = first;
  cuda::launch(stream, "gradient_groups", gradient_groups_launch(blocks, stream.multiprocessors), added, blocks,
               groups);
}

GradientSummary gradient_summary(const GradientPass& args, const void* findings) {
  return gradient_summary(args, static_cast<const GradientGroupSum*>(findings));
}

void gradient_histogram(const GradientSample& args, const cuda::Stream& stream) {
  const int64_t distance = args.stride * kGradientSampleRun;
  for (const GradientTable& table : gradient_tables(args.tensors, args.tensor_count, distance, kGradientSampleRun)) {
    cuda::launch(stream, "gradient_histogram", gradient_histogram_launch(table, stream.multiprocessors), table,
                 distance, args.counts);
  }
}

}  // namespace plimsoll::kernels
