// Unscale, check, norm and clip over all gradients of a model, against a plain pass in place over the same memory and
// against torch's calls for the same, in turn.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <torch/nn/utils/clip_grad.h>

#include <cmath>

#include "plimsoll/amp/unscale.h"
#include "plimsoll/kernels/stream_bench.h"

namespace plimsoll::amp {
namespace {

namespace bench = kernels::bench;

constexpr int64_t kTensor = 1 << 20;  // elements of each gradient
constexpr float kValue = 1e-3f;

// Gradients side by side, so that one plain pass reaches them all.
struct Model {
  explicit Model(int64_t elements) : memory(at::full({elements}, kValue)) {
    for (int64_t begin = 0; begin < elements; begin += kTensor) {
      grads.push_back(memory.slice(0, begin, std::min(begin + kTensor, elements)));
      parameters.push_back(at::empty({0}));
      parameters.back().set_data(grads.back());
      parameters.back().mutable_grad() = grads.back();
    }
  }
  double norm() const { return static_cast<double>(kValue) * std::sqrt(static_cast<double>(memory.numel())); }

  at::Tensor memory;
  std::vector<at::Tensor> grads, parameters;
};

void torchs_calls(const Model& model, float inv_scale, double max_norm) {
  at::Tensor found = at::zeros({1});
  const at::Tensor inverse = at::full({1}, inv_scale);
  at::_amp_foreach_non_finite_check_and_unscale_(model.grads, found, inverse);
  torch::nn::utils::clip_grad_norm_(model.parameters, max_norm);
  benchmark::DoNotOptimize(found.item<float>());
}

enum class Clip { kNot, kExpected, kUnexpected };

void unscale_bench(benchmark::State& state, Clip clip) {
  const Model model(state.range(0));
  const int64_t bytes = state.range(0) * static_cast<int64_t>(sizeof(float));
  // Unclipped, values hardly move; clipped, torch's calls bring them back to where ours found them.
  const double max_norm = (clip == Clip::kNot ? 2 : 0.9) * model.norm();
  const double torchs_max_norm = (clip == Clip::kNot ? 2 : 1) * model.norm();
  const float inv_scale = clip == Clip::kNot ? 1 - 0x1p-20f : 2;
  // Read and written once; expected clipping reads once more, unexpected reads and writes once more. The limit moves
  // the same in plain passes.
  const int64_t moved = clip == Clip::kNot ? 2 * bytes : clip == Clip::kExpected ? 3 * bytes : 4 * bytes;
  const auto ours = [&] {
    unscale_gradients_(model.grads,
                       {.inv_scale = inv_scale, .max_norm = max_norm, .expect_clip = clip == Clip::kExpected});
  };
  const bench::Stream reads{model.memory.data_ptr(), bytes, nullptr, 0};
  const bench::Stream in_place{model.memory.data_ptr(), bytes, model.memory.data_ptr(), bytes};
  const auto plain_passes = [&] {
    if (clip != Clip::kNot) bench::plain_loop(clip == Clip::kExpected ? reads : in_place);
    bench::plain_loop(in_place);
  };
  bench::Rounds rounds;
  std::vector<double> over_torch, limit_over_torch;
  ours();
  bench::repeat(state, [&] {
    const double plain = bench::seconds(plain_passes);
    const double time = bench::seconds(ours);
    const double torch = bench::seconds([&] { torchs_calls(model, inv_scale, torchs_max_norm); });
    rounds.add(static_cast<double>(moved) / time, static_cast<double>(moved) / plain);
    over_torch.push_back(torch / time);
    limit_over_torch.push_back(torch / plain);
    return time;
  });
  rounds.report(state, "GB/s");
  state.counters["x_torch"] = bench::median(over_torch);
  state.counters["limit_x_torch"] = bench::median(limit_over_torch);  // what the plain passes would reach
}

constexpr std::initializer_list<int64_t> kSizes = {1 << 20, 100'000'000};
const bool kRegistered[] = {
    bench::add("unscale/not_clipped", kSizes, unscale_bench, Clip::kNot),
    bench::add("unscale/clipped", kSizes, unscale_bench, Clip::kExpected),
    bench::add("unscale/clipped_unexpectedly", kSizes, unscale_bench, Clip::kUnexpected),
};

}  // namespace
}  // namespace plimsoll::amp
