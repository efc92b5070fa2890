// Autograd's record of one forward pass of a unit: the nodes of the graph that are the unit's own, and how many of them
// a backward pass has still to run. Until there are none, it needs the unit's parameters, frozen ones too.
//
// The nodes of a forward pass have sequence numbers between its begin and its end, on one thread; the nodes of units
// inside it are theirs. A node that runs leads to a parameter or out of the unit, so it is enough to see those own
// nodes run from which an edge does ("exits").
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace plimsoll::shard {

// Nodes with sequence numbers in [begin, end).
struct NodeRange {
  uint64_t begin = 0, end = 0;
  bool holds(uint64_t number) const { return begin <= number && number < end; }
};

// A forward pass that is under way, or was.
struct ForwardPass {
  size_t unit = 0;
  bool records = false;                   // a graph
  NodeRange nodes = {};                   // the end is there when the pass is over
  std::vector<NodeRange> inner = {};      // of units inside
  std::map<size_t, int> unrecorded = {};  // how often each unit inside ran without a graph, which a reentrant
                                          // checkpoint makes in the backward pass
};

class UnitPass : public std::enable_shared_from_this<UnitPass> {
 public:
  using OnExit = std::function<void(UnitPass&)>;

  // outputs: of the pass. on_exit is called after each exit that a backward pass runs. The graph owns the result.
  static std::shared_ptr<UnitPass> record(ForwardPass pass, at::TensorList outputs, OnExit on_exit);

  size_t unit() const { return pass_.unit; }
  const std::map<size_t, int>& unrecorded() const { return pass_.unrecorded; }

  // Exits that the backward pass of this thread runs are waited for, beside those that are already. False: it runs
  // none.
  bool await_exits();
  // One exit has run, which on_exit tells. True: it is the last one that was waited for.
  bool take_exit() { return awaited_ > 0 && --awaited_ == 0; }
  void forget_exits() { awaited_ = 0; }

 private:
  struct ExitHook;

  UnitPass(ForwardPass pass, OnExit on_exit) : pass_(std::move(pass)), on_exit_(std::move(on_exit)) {}
  bool holds(const torch::autograd::Node& node) const;
  bool is_own(const torch::autograd::Node& node) const;
  void find_exits(at::TensorList outputs);

  ForwardPass pass_;
  OnExit on_exit_;
  std::unordered_set<torch::autograd::Node*> exits_;  // those that the graph still has
  int64_t awaited_ = 0;
};

}  // namespace plimsoll::shard
