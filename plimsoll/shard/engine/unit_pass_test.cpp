#include "plimsoll/shard/engine/unit_pass.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace plimsoll::shard {
namespace {

// A forward pass of one unit, and what its hooks saw.
struct Observed {
  template <class Forward>
  at::Tensor run(Forward forward, std::vector<NodeRange> inner = {}) {
    ForwardPass open = {.unit = 3, .records = true, .nodes = {.begin = at::sequence_number::peek()}};
    const at::Tensor output = forward();
    open.nodes.end = at::sequence_number::peek();
    open.inner = std::move(inner);
    const auto recorded = UnitPass::record(open, output, [this](UnitPass& of) {
      if (!is_begun) of.await_exits();
      is_begun = true;
      ++exits;
      if (of.take_exit()) ++ends;
    });
    pass = recorded;
    output.register_hook([recorded](const at::Tensor&) {});  // as ShardSchedule does: the graph owns it
    return output;
  }

  std::weak_ptr<UnitPass> pass;
  bool is_begun = false;
  int exits = 0, ends = 0;
};

at::Tensor leaf() { return at::ones({2}).requires_grad_(); }

TEST(UnitPass, EndsWithTheLastNodeThatLeadsOutOfIt) {
  const at::Tensor x = leaf(), weight = leaf(), frozen = at::ones({2});
  const at::Tensor before = x.sin();
  Observed observed;
  int ends_before = -1;
  before.register_hook([&](const at::Tensor&) { ends_before = observed.ends; });
  const at::Tensor output = observed.run([&] { return ((before * weight) * frozen).cos(); });
  output.sum().backward();
  EXPECT_EQ(observed.exits, 1);  // the product with the weight, which leads to the weight and to x
  EXPECT_EQ(observed.ends, 1);
  EXPECT_EQ(ends_before, 1) << "before what computed its input runs";
}

TEST(UnitPass, WaitsForFrozenParametersBehindTrainedOnes) {
  const at::Tensor x = leaf(), weight = leaf(), frozen = at::ones({2});
  Observed observed;
  const at::Tensor output = observed.run([&] { return (x * frozen) * weight; });
  bool had_ended = true;
  weight.register_hook([&](const at::Tensor&) { had_ended = observed.ends > 0; });
  output.sum().backward();
  EXPECT_EQ(observed.exits, 2);
  EXPECT_EQ(observed.ends, 1);
  EXPECT_FALSE(had_ended) << "the gradient of the weight comes before the frozen parameter is read";
}

TEST(UnitPass, NodesOfUnitsInsideAreTheirs) {
  const at::Tensor x = leaf(), inner_weight = leaf();
  Observed outer;
  NodeRange inner;
  const at::Tensor output = outer.run(
      [&] {
        inner.begin = at::sequence_number::peek();
        const at::Tensor hidden = x * inner_weight;
        inner.end = at::sequence_number::peek();
        return hidden.cos();
      },
      {{at::sequence_number::peek(), at::sequence_number::peek() + 1}});
  bool had_ended = false;
  inner_weight.register_hook([&](const at::Tensor&) { had_ended = outer.ends == 1; });
  output.sum().backward();
  EXPECT_EQ(inner.end, inner.begin + 1);
  EXPECT_EQ(outer.exits, 1);
  EXPECT_TRUE(had_ended) << "nothing of the outer unit runs after the unit inside it has begun";
}

TEST(UnitPass, OnlyWhatABackwardPassRunsIsWaitedFor) {
  const at::Tensor x = leaf(), weight = leaf();
  Observed observed;
  at::Tensor left;
  const at::Tensor output = observed.run([&] {
    left = x * weight;
    return left + (weight * 2);
  });
  torch::autograd::grad({output.sum()}, {x}, {}, /*retain_graph=*/true);
  EXPECT_EQ(observed.ends, 1);
  EXPECT_EQ(observed.exits, 1);
  observed.is_begun = false;
  output.sum().backward();
  EXPECT_EQ(observed.ends, 2);
  EXPECT_EQ(observed.exits, 1 + 2);
}

TEST(UnitPass, GoesWithTheGraph) {
  const at::Tensor x = leaf();
  Observed observed;
  {
    const at::Tensor output = observed.run([&] { return x.sin() * x; });
    EXPECT_FALSE(observed.pass.expired());
  }
  EXPECT_TRUE(observed.pass.expired());
}

}  // namespace
}  // namespace plimsoll::shard
