// Mode::kShadow: the ops around the first bad one, run again in FP32 one after another, so that each reads what the one
// before it would have given.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/ops/watch/wider_call.h"
#include "plimsoll/watch/incidents.h"

namespace plimsoll::ops {

// An op that has run.
struct ShadowedOp {
  std::string path = {};  // empty: a view, which passes on what it reads and is no step
  std::vector<at::Tensor> operands = {};
  std::vector<at::Tensor> results = {};
  // The op's results again, of the FP32 values of its operands; empty where it cannot run.
  std::function<std::vector<at::Tensor>(const Widen&)> again = {};
};

// Keeps the last ops with what they read. From the first incident on it runs them, and some that follow, and adds each
// to that incident's window; then it keeps nothing.
class ShadowWindow {
 public:
  explicit ShadowWindow(watch::Incidents& incidents) : incidents_(incidents) {}

  // The next op; an incident that it made is known already.
  void add(ShadowedOp op);

 private:
  static constexpr size_t kBefore = 6;  // the bad one, and ops before it
  static constexpr size_t kAfter = 4;   // that read what it left

  struct Kept {
    ShadowedOp op;
    std::vector<uint32_t> versions;  // of its operands
  };
  static std::vector<uint32_t> versions_of(const std::vector<at::Tensor>& tensors);
  void run(const Kept& kept);
  void report(const ShadowedOp& op, const std::vector<at::Tensor>& wide);
  void forget(const std::vector<at::Tensor>& overwritten);
  at::Tensor wide_of(const at::Tensor& tensor) const;

  watch::Incidents& incidents_;
  std::deque<Kept> kept_;
  size_t steps_kept_ = 0;                                // of kept_, those that are no views
  size_t steps_left_ = 1 + kAfter;                       // from the bad op on
  std::vector<std::pair<at::Tensor, at::Tensor>> wide_;  // results, and what FP32 gives; the last first counts
};

}  // namespace plimsoll::ops
