// Each trick of this folder and what it relies on, so that a new torch that does otherwise says so here.
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "plimsoll/ops/torch_internals/accumulation.h"
#include "plimsoll/ops/torch_internals/attached.h"
#include "plimsoll/ops/torch_internals/backward_pass.h"
#include "plimsoll/ops/torch_internals/collective.h"
#include "plimsoll/ops/torch_internals/free_key.h"
#include "plimsoll/ops/torch_internals/lack_of_memory.h"
#include "plimsoll/ops/torch_internals/node_pointer.h"
#include "plimsoll/ops/torch_internals/replaced_kernels.h"
#include "plimsoll/ops/torch_internals/saving.h"
#include "plimsoll/ops/torch_internals/scaled_product.h"
#include "plimsoll/ops/torch_internals/sparse_entries.h"
#include "plimsoll/ops/torch_internals/tracing.h"

namespace plimsoll::ops {
namespace {

using Shared = std::shared_ptr<int>;

at::Tensor leaf() { return at::ones({3}).requires_grad_(); }

// -- attached.h

TEST(Attached, AnObjectEndsWithItsTensor) {
  at::Tensor x = at::zeros({2});
  EXPECT_EQ(find_attached<Shared>(x), nullptr);
  const auto object = std::make_shared<int>(7);
  attach<Shared>(x, object);
  EXPECT_EQ(**find_attached<Shared>(x), 7);
  EXPECT_EQ(find_attached<std::string>(x), nullptr);
  attach<std::string>(x, "another");
  EXPECT_EQ(find_attached<Shared>(x), nullptr);
  EXPECT_EQ(object.use_count(), 1);
  attach<Shared>(x, object);
  x.reset();
  EXPECT_EQ(object.use_count(), 1);
}

TEST(Attached, ATensorThatTakesOverTheDataHasTheObject) {
  const at::Tensor from = at::zeros({2});
  attach<std::string>(from, "carried");
  const at::Tensor to = at::ones({2});
  to.set_data(from);
  ASSERT_NE(find_attached<std::string>(to), nullptr);
  EXPECT_EQ(*find_attached<std::string>(to), "carried");
}

// -- replaced_kernels.h

TEST(ReplacedKernels, AKernelDeclinesOrReplacesUntilTheObjectEnds) {
  const at::Tensor x = at::ones({2, 2}), y = at::ones({2, 2}).mul(3);
  bool takes = true;
  {
    ReplacedKernels kernels;
    EXPECT_TRUE(kernels.replace("aten::mm", [&](CallStack& stack) {
      if (!takes) return false;
      torch::jit::drop(stack, 2);
      stack.emplace_back(y);
      return true;
    }));
    EXPECT_FALSE(kernels.replace("aten::no_such_operator", [](CallStack&) { return false; }));
    EXPECT_TRUE(at::mm(x, x).is_same(y));
    takes = false;
    EXPECT_EQ(at::mm(x, x)[0][0].item<float>(), 2);
    takes = true;
  }
  EXPECT_EQ(at::mm(x, x)[0][0].item<float>(), 2);
}

TEST(ReplacedKernels, TheLaterOneIsCalledAndTheEarlierOneStandsBehindIt) {
  const at::Tensor x = at::ones({2, 2});
  std::string order;
  ReplacedKernels earlier, later;
  earlier.replace("aten::mm", [&](CallStack&) { return order += "earlier", false; });
  later.replace("aten::mm", [&](CallStack&) { return order += "later ", false; });
  at::mm(x, x);
  EXPECT_EQ(order, "later earlier");
}

TEST(ReplacedKernels, AComposedOperatorIsReplacedAboveAutogradAndBelowIt) {
  const at::Tensor x = at::ones({2, 4}), y = at::ones({2, 4}).mul(3);
  const auto norm = [](const at::Tensor& of) { return at::rms_norm(of, {4}); };
  int calls = 0;
  bool takes = true;
  {
    ReplacedKernels kernels;
    EXPECT_FALSE(kernels.replace("aten::rms_norm", [](CallStack&) { return false; }));
    EXPECT_FALSE(kernels.replace_composed("aten::mm", [](CallStack&) { return false; }));
    EXPECT_TRUE(kernels.replace_composed("aten::rms_norm", [&](CallStack& stack) {
      ++calls;
      if (!takes) return false;
      torch::jit::drop(stack, 4);
      stack.emplace_back(y);
      return true;
    }));
    EXPECT_TRUE(norm(x).is_same(y));
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(norm(at::ones({2, 4})).is_same(y));
    }
    EXPECT_EQ(calls, 2);
    takes = false;
    const at::Tensor leaf = at::ones({2, 4}).requires_grad_();
    torch::autograd::backward({norm(leaf).sum()}, {});  // of the composition
    EXPECT_TRUE(leaf.grad().defined());
    EXPECT_EQ(calls, 3);
  }
  EXPECT_TRUE(at::allclose(norm(x), x));
  EXPECT_EQ(calls, 3);
}

// -- scaled_product.h

TEST(ScaledProduct, IsTheProductOfTheScaledCodes) {
  at::manual_seed(1);
  const at::Tensor a = at::randn({5, 32}).to(at::kFloat8_e4m3fn), b = at::randn({16, 32}).to(at::kFloat8_e4m3fn);
  const at::Tensor scale_a = at::full({}, 0.5f), scale_b = at::full({}, 4.0f);
  const at::Tensor exact = at::mm(a.to(at::kDouble) * 0.5, b.to(at::kDouble).t() * 4);
  at::Tensor output = at::empty({5, 16});
  scaled_product(output, a, b, scale_a, scale_b);
  // Terms of 8 bits and sums of 32 of them: FP32 rounds each addition, and no product.
  const at::Tensor magnitudes = at::mm(a.to(at::kDouble).abs() * 0.5, b.to(at::kDouble).abs().t() * 4);
  EXPECT_TRUE(((output.to(at::kDouble) - exact).abs() <= 33 * 0x1p-24 * magnitudes).all().item<bool>());
}

// -- free_key.h

struct KeyedImpl final : c10::TensorImpl {
  KeyedImpl()
      : TensorImpl(c10::DispatchKeySet({c10::DispatchKey::CPU, kFreeKey, c10::DispatchKey::AutogradCPU}),
                   c10::scalarTypeToTypeMeta(at::kFloat), at::Device(at::kCPU)) {}
};

at::Tensor seven(const at::Tensor& /*x*/) { return at::ones({7}); }
at::Tensor plain(const at::Tensor& /*x*/) { return at::ones({1}); }

TORCH_LIBRARY(plimsoll_free_key_test, library) { library.def("size(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(plimsoll_free_key_test, CPU, library) { library.impl("size", &plain); }
TORCH_LIBRARY_IMPL(plimsoll_free_key_test, PLIMSOLL_FREE_KEY, library) { library.impl("size", &seven); }

TEST(FreeKey, ATensorThatCarriesItReachesItsKernelsAndNoOtherDoes) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("plimsoll_free_key_test::size", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  EXPECT_EQ(op.call(at::Tensor(c10::make_intrusive<KeyedImpl>())).numel(), 7);
  EXPECT_EQ(op.call(at::zeros({2})).numel(), 1);
}

TEST(FreeKey, ItStandsBetweenAutogradAndTheBackends) {
  EXPECT_GT(c10::toFunctionalityKey(c10::DispatchKey::AutogradCPU), kFreeKey);
  EXPECT_GT(kFreeKey, c10::DispatchKey::Dense);
}

// -- node_pointer.h

TEST(NodePointer, ItKeepsANodeAlive) {
  NodePointer node;
  {
    const at::Tensor y = leaf().exp();
    node = y.grad_fn();
  }
  EXPECT_EQ(node->name(), "ExpBackward0");
}

// -- backward_pass.h

TEST(BackwardPass, OutsideOfOneThereIsNone) {
  EXPECT_EQ(current_backward_pass(), kNoBackwardPass);
  EXPECT_FALSE(is_partial_backward_pass());
  EXPECT_THROW(at_end_of_backward_pass([] {}), c10::Error);
}

// A call of `look` in the backward pass of x * 2 + y * 3.
struct Pass {
  at::Tensor x = leaf(), y = leaf();
  at::Tensor of_x = x.mul(2), sum = of_x.add(y.mul(3)).sum();

  template <class Look>
  void see(Look look) {
    of_x.register_hook([look](const at::Tensor&) { look(); });
  }
};

TEST(BackwardPass, ItsEndComesOnceAfterAllItsNodes) {
  Pass pass;
  std::vector<std::string> order;
  int number = kNoBackwardPass;
  pass.see([&] {
    number = current_backward_pass();
    at_end_of_backward_pass(
        [&] { order.emplace_back(pass.y.grad().defined() && pass.x.grad().defined() ? "end" : "early"); });
    order.emplace_back("node");
  });
  pass.sum.backward();
  EXPECT_GE(number, 0);
  EXPECT_EQ(order, (std::vector<std::string>{"node", "end"}));
  EXPECT_EQ(current_backward_pass(), kNoBackwardPass);
}

TEST(BackwardPass, OneThatAnExceptionEndsDropsItsEnd) {
  Pass pass;
  const auto held = std::make_shared<int>(1);
  bool ended = false;
  pass.see([&ended, held] {
    at_end_of_backward_pass([&ended, held] { ended = true; });
    throw std::runtime_error("stopped");
  });
  EXPECT_ANY_THROW(pass.sum.backward());
  EXPECT_FALSE(ended);
}

TEST(BackwardPass, APartialOneRunsTheNodesOnTheWayAlone) {
  Pass pass;
  const NodePointer of_x = pass.of_x.grad_fn();
  const NodePointer of_y = pass.sum.grad_fn()->next_edge(0).function->next_edge(1).function;
  bool partial = false, runs_x = false, runs_y = true;
  pass.see([&] {
    partial = is_partial_backward_pass();
    runs_x = is_in_backward_pass(of_x.get());
    runs_y = is_in_backward_pass(of_y.get());
  });
  torch::autograd::grad({pass.sum}, {pass.x}, {}, /*retain_graph=*/true);
  EXPECT_TRUE(partial && runs_x && !runs_y);
  pass.sum.backward();
  EXPECT_TRUE(!partial && runs_x && runs_y);
}

// -- accumulation.h

TEST(Accumulation, TheHookComesAfterEachAdditionUntilItIsTakenAway) {
  const at::Tensor x = leaf();
  std::vector<float> seen;
  hook_accumulation(x, [&] { seen.push_back(x.grad()[0].item<float>()); });
  x.mul(2).sum().backward();
  x.mul(2).sum().backward();
  EXPECT_TRUE(has_accumulation_hook(x));
  hook_accumulation(x, nullptr);
  EXPECT_FALSE(has_accumulation_hook(x));
  x.mul(2).sum().backward();
  EXPECT_EQ(seen, (std::vector<float>{2, 4}));
}

TEST(Accumulation, TheNodeIsThereWhileAGraphReachesTheParameter) {
  const at::Tensor x = leaf();
  EXPECT_EQ(accumulator_of(x), nullptr);
  const at::Tensor y = x.mul(2);
  EXPECT_EQ(accumulator_of(x), y.grad_fn()->next_edge(0).function);
}

// -- tracing.h

TEST(Tracing, ATensorWithoutValuesIsTraced) {
  EXPECT_FALSE(is_traced(at::zeros({2})));
  EXPECT_TRUE(is_traced(at::zeros({2}, at::kMeta)));
}

TEST(Tracing, ATangentIsSeenWhileItsLevelLasts) {
  EXPECT_FALSE(is_transformed());  // python/tests/accelerate_rms_norm_test.py has what is
  const at::Tensor x = at::ones({2});
  EXPECT_FALSE(has_tangent(x));
  const uint64_t level = torch::autograd::forward_ad::enter_dual_level();
  const at::Tensor dual = at::_make_dual(x, at::ones({2}), static_cast<int64_t>(level));
  EXPECT_TRUE(has_tangent(dual));
  torch::autograd::forward_ad::exit_dual_level(level);
  EXPECT_FALSE(has_tangent(x));
}

// -- sparse_entries.h

TEST(SparseEntries, EntriesAreTheTensorsOwnAndThoseOfOnePlaceAddUp) {
  const at::Tensor places = at::tensor({1, 0, 1}, at::kLong).view({1, 3});
  const at::Tensor sparse = at::sparse_coo_tensor(places, at::tensor({1.0f, 2.0f, 4.0f}), {3});
  ASSERT_FALSE(sparse.is_coalesced());
  EXPECT_TRUE(
      sums_of_places(sparse, at::tensor({1.0, 2.0, 4.0}, at::kDouble)).equal(at::tensor({2.0, 5.0}, at::kDouble)));
  entries_of(sparse).fill_(1);
  EXPECT_TRUE(sparse.to_dense().equal(at::tensor({1.0f, 2.0f, 0.0f})));
}

// -- saving.h

struct CountingHooks final : torch::autograd::SavedVariableHooks {
  explicit CountingHooks(std::shared_ptr<int> of) : alive(std::move(of)) {}
  void call_pack_hook(const at::Tensor& tensor) override { saved = tensor; }
  at::Tensor call_unpack_hook() override { return saved; }
  std::shared_ptr<int> alive;  // a count for each tensor that is kept
  at::Tensor saved;
};

TEST(Saving, EachSavedTensorHasHooksUntilTheyAreTakenAway) {
  const auto alive = std::make_shared<int>();
  const at::Tensor x = leaf();
  set_saving_hooks([&] { return std::make_unique<CountingHooks>(alive); });
  at::Tensor y = x.exp();
  EXPECT_EQ(alive.use_count(), 2);
  set_saving_hooks(nullptr);
  const at::Tensor z = x.exp();
  EXPECT_EQ(alive.use_count(), 2);
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(at::ones({3}).exp()));
  y.reset();
  EXPECT_EQ(alive.use_count(), 1);
}

// -- collective.h

struct CountedWork final : c10d::Work {
  bool wait(std::chrono::milliseconds /*timeout*/) override { return ++waited > 0; }
  int waited = 0;
};

TEST(Collective, TheResultOfOneIsWaitedForAndNoOtherIs) {
  const auto work = c10::make_intrusive<CountedWork>();
  wait_for_collective(c10::IValue(c10::intrusive_ptr<c10d::Work>(work)));
  EXPECT_EQ(work->waited, 1);
  wait_for_collective(c10::IValue(at::zeros({1})));
}

// -- lack_of_memory.h

bool says_lack_of_memory(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return is_lack_of_memory(error);
  }
  ADD_FAILURE() << "expected an exception, got none";
  return false;
}

TEST(LackOfMemory, TheAllocatorsErrorsSaySoAndOthersDoNot) {
  EXPECT_TRUE(says_lack_of_memory([] { at::empty({int64_t{1} << 58}); }));
  EXPECT_TRUE(says_lack_of_memory([] { throw std::bad_alloc(); }));
  EXPECT_TRUE(says_lack_of_memory([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "expected memory, got none"); }));
  EXPECT_FALSE(says_lack_of_memory([] { at::ones({2, 3}).mm(at::ones({2, 3})); }));
  EXPECT_FALSE(says_lack_of_memory([] { throw std::runtime_error("DefaultCPUAllocator: not enough memory"); }));
}

}  // namespace
}  // namespace plimsoll::ops
