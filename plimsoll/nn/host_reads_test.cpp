// Scales and amaxes of delayed scaling stay where the data is: between the ends of its steps no layer reads one on the
// host.
#include <ATen/record_function.h>

#include <atomic>
#include <functional>
#include <type_traits>

#include "plimsoll/amp/fp8_autocast.h"
#include "plimsoll/nn/layer_norm_linear.h"
#include "plimsoll/nn/layer_norm_mlp.h"
#include "plimsoll/nn/linear.h"
#include "plimsoll/nn/multihead_attention.h"
#include "plimsoll/nn/testing.h"
#include "plimsoll/nn/transformer_layer.h"
#include "plimsoll/ops/tensor/quantize.h"
#include "plimsoll/ops/tensor/read_together.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::nn {
namespace {

using ops::host_reads;

static_assert(!std::is_convertible_v<ops::ScaleRef, float> && !std::is_constructible_v<float, ops::ScaleRef>);
static_assert(!std::is_convertible_v<ops::AmaxSlot, float> && !std::is_constructible_v<float, ops::AmaxSlot>);

constexpr int64_t kWidth = 32, kInner = 48, kHeadCount = 4;

// Calls of torch's operator by which a tensor becomes a number, the way around the counter.
class CountsItems {
 public:
  CountsItems()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(begin).scopes({at::RecordScope::FUNCTION}))) {
    items_ = 0;
  }
  ~CountsItems() { at::removeCallback(handle_); }
  CountsItems(const CountsItems&) = delete;
  CountsItems& operator=(const CountsItems&) = delete;

  static int64_t items() { return items_; }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (std::string_view(function.name()) == "aten::_local_scalar_dense") ++items_;
    return nullptr;
  }

  static inline std::atomic<int64_t> items_ = 0;
  at::CallbackHandle handle_;
};

using Forward = std::function<at::Tensor(const at::Tensor&)>;

struct Layer {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
};

std::vector<Layer> layers() {
  const Linear linear(kWidth, kWidth);
  const LayerNormLinear norm_linear(kWidth, kWidth);
  const LayerNormMlp gelu(kWidth, kInner), swiglu(kWidth, kInner, LayerNormMlpOptions{.activation = "swiglu"});
  const MultiheadAttention attention(
      kWidth, kHeadCount,
      MultiheadAttentionOptions{.attention_dropout = 0, .input_layernorm = true, .fuse_qkv_params = true});
  const auto transformer_layer = [](bool recomputes) {
    TransformerLayer layer(
        kWidth, kInner, kHeadCount,
        TransformerLayerOptions{.hidden_dropout = 0, .attention_dropout = 0, .fuse_qkv_params = true});
    layer->checkpoint_activations = recomputes;
    return layer;
  };
  const TransformerLayer whole = transformer_layer(false), recomputed = transformer_layer(true);
  return {{"Linear", linear.ptr(), [=](const at::Tensor& x) { return linear.ptr()->forward(x); }},
          {"LayerNormLinear", norm_linear.ptr(), [=](const at::Tensor& x) { return norm_linear.ptr()->forward(x); }},
          {"LayerNormMlp", gelu.ptr(), [=](const at::Tensor& x) { return gelu.ptr()->forward(x); }},
          {"LayerNormMlp, gated", swiglu.ptr(), [=](const at::Tensor& x) { return swiglu.ptr()->forward(x); }},
          {"MultiheadAttention", attention.ptr(),
           [=](const at::Tensor& x) { return attention.ptr()->forward({.hidden = x}).output; }},
          {"TransformerLayer", whole.ptr(), [=](const at::Tensor& x) { return whole.ptr()->forward(x); }},
          {"TransformerLayer, computed again", recomputed.ptr(),
           [=](const at::Tensor& x) { return recomputed.ptr()->forward(x); }}};
}

// Host reads of a step: within the forward pass, at the end of its scope, and in the backward pass with its end.
struct StepReads {
  int64_t forward, scope_end, backward;
  friend bool operator==(const StepReads&, const StepReads&) = default;
};

StepReads reads_of_step(const Layer& layer) {
  const at::Tensor x = torch::randn({6, 2, kWidth}).requires_grad_(true);
  const int64_t before = host_reads();
  amp::Fp8Autocast scope({.recipe = recipe::DelayedScaling{}});
  const at::Tensor output = layer.forward(x);
  const int64_t after_forward = host_reads();
  scope.end();
  const int64_t after_scope = host_reads();
  output.backward(torch::ones_like(output));
  return {after_forward - before, after_scope - after_forward, host_reads() - after_scope};
}

TEST(HostReads, AStepOfDelayedScalingReadsOnceAtTheEndOfEachPass) {
  torch::manual_seed(1);
  for (const Layer& layer : layers()) {
    SCOPED_TRACE(layer.name);
    const CountsItems counts;
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(reads_of_step(layer), (StepReads{.forward = 0, .scope_end = 1, .backward = 1})) << step;
    }
    EXPECT_EQ(CountsItems::items(), 0);
    for (const auto& buffer : layer.module->named_buffers()) {
      if (!buffer.key().ends_with("_scale")) continue;
      EXPECT_GT(buffer->item<float>(), 0.0f) << buffer.key();
    }
  }
}

TEST(HostReads, InferenceWithDelayedScalesReadsNothing) {
  torch::manual_seed(4);
  for (const Layer& layer : layers()) {
    SCOPED_TRACE(layer.name);
    reads_of_step(layer);
    const at::NoGradGuard no_grad;
    const int64_t before = host_reads();
    for (int call = 0; call < 3; ++call) {
      const amp::Fp8Autocast scope({.recipe = recipe::DelayedScaling{}});
      layer.forward(torch::randn({6, 2, kWidth}));
    }
    EXPECT_EQ(host_reads(), before);
  }
}

// A checkpoint may bring scales or take them away. They are on the CPU, where no read waits for a device.
TEST(HostReads, ScalesThatWereReplacedAreSeenWithoutARead) {
  torch::manual_seed(2);
  const Layer layer = layers().front();
  reads_of_step(layer);
  {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : layer.module->named_buffers()) {
      if (buffer.key().ends_with("_scale")) buffer->fill_(0.5);
    }
  }
  EXPECT_EQ(reads_of_step(layer), (StepReads{.forward = 0, .scope_end = 1, .backward = 1}));
}

TEST(HostReads, AWatchReadsAllTogetherWhenSomebodyAsksIt) {
  torch::manual_seed(3);
  for (const Layer& layer : layers()) {
    SCOPED_TRACE(layer.name);
    name_products(*layer.module, "layer");
    const watch::Session session;
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(reads_of_step(layer), (StepReads{.forward = 0, .scope_end = 1, .backward = 1})) << step;
      const int64_t before = host_reads();
      EXPECT_GT(session.slots().records().size(), 4u);
      EXPECT_EQ(host_reads(), before + 1);
    }
  }
}

// The counters themselves.
TEST(HostReads, EveryWayToANumberIsSeen) {
  const at::Tensor x = torch::randn({3, 4});
  const ops::Quantized quantized = ops::quantize(x, {.scale = ops::ScaleRef::of(0.5f)});
  const int64_t before = host_reads();
  EXPECT_EQ(quantized.amax.read_on_host(), x.abs().max().item<float>());
  EXPECT_EQ(host_reads(), before + 1);
  EXPECT_EQ(ops::ScaleRef(quantized.tensor.scale).read_on_host(), 0.5f);
  EXPECT_EQ(host_reads(), before + 2);
  EXPECT_EQ(ops::read_on_host({quantized.amax.memory(), quantized.tensor.scale}).size(), 2u);
  EXPECT_EQ(host_reads(), before + 3);
  EXPECT_GT(ops::amax(x), 0.0f);
  EXPECT_EQ(host_reads(), before + 4);
  const CountsItems counts;
  quantized.tensor.scale.item<float>();
  EXPECT_EQ(CountsItems::items(), 1);
}

}  // namespace
}  // namespace plimsoll::nn
