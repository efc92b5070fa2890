#include "plimsoll/kernels/rescale/rescale_loops.h"
#include "plimsoll/kernels/shared_amax.h"
#include "plimsoll/runtime/pick.h"
#include "plimsoll/runtime/threads.h"

namespace plimsoll::kernels {

namespace {

template <class Byte>
Byte* at(Byte* data, int64_t index, format::Format format) {
  return data == nullptr ? nullptr : data + index * format::bytes(format);
}

Rescale part_of(const Rescale& args, int64_t begin, int64_t end) {
  Rescale part = args;
  part.input = at(static_cast<const char*>(args.input), begin, args.input_format);
  part.input_remainder = at(static_cast<const char*>(args.input_remainder), begin, args.input_format);
  part.output = at(static_cast<char*>(args.output), begin, args.output_format);
  part.output_remainder = at(static_cast<char*>(args.output_remainder), begin, args.output_format);
  part.count = end - begin;
  return part;
}

}  // namespace

float rescale(const Rescale& args) {
  constexpr int64_t kGrain = 32768;  // elements: about ten microseconds
  const RescaleLoops& loops = runtime::pick(kRescaleLoopsPortable, kRescaleLoopsAvx2, kRescaleLoopsAvx512);
  SharedAmax amax;
  runtime::parallel_for(args.count, kGrain,
                        [&](int64_t begin, int64_t end) { amax.raise(loops.part(part_of(args, begin, end))); });
  return amax.value();
}

}  // namespace plimsoll::kernels
