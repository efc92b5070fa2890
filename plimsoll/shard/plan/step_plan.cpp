#include "plimsoll/shard/plan/step_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plimsoll/runtime/unexpected.h"
#include "plimsoll/shard/average/averaging.h"

namespace plimsoll::shard {
namespace {

constexpr double kGradientBytes = 4;  // that travels
// AdamW reads a parameter, its gradient and two moments, and writes all but the gradient; the norm reads the gradient.
constexpr double kUpdateBytes = 28 + 4;
constexpr double kForwardShare = 1.0 / 3;  // of a unit's multiply-adds

// One collective after the other, each when it was asked for or later.
class Link {
 public:
  Link(const Network& network, int64_t world) : network_(network), world_(static_cast<double>(world)) {}

  // all_gather and reduce_scatter; returns when it is done. sent: what this rank sends is added to it.
  double scatter(double asked, double bytes, double& sent) { return serve(asked, bytes, 1, sent); }
  double all_reduce(double asked, double bytes, double& sent) { return serve(asked, bytes, 2, sent); }

  double busy() const { return busy_; }
  double free_at() const { return free_at_; }

 private:
  double serve(double asked, double bytes, double rounds, double& sent) {
    const double messages = rounds * (world_ - 1);
    if (messages == 0 || bytes == 0) return asked;
    const double travels = messages * bytes / world_;
    const double seconds = messages * network_.seconds_per_message + travels / network_.bytes_per_second;
    sent += travels;
    busy_ += seconds;
    free_at_ = std::max(free_at_, asked) + seconds;
    return free_at_;
  }

  Network network_;
  double world_;
  double busy_ = 0, free_at_ = 0;
};

double gradient_bytes(const PlannedUnit& unit) { return kGradientBytes * static_cast<double>(unit.parameters); }

double count_of(const std::vector<PlannedUnit>& units) {
  return std::accumulate(units.begin(), units.end(), 0.0, [](double sum, const PlannedUnit& unit) {
    return sum + static_cast<double>(unit.parameters);
  });
}

double parameters_of(const PlannedStep& step) { return count_of(step.units); }

bool shares_states(const PlannedStep& step) { return step.sharing != Sharing::kNone && step.sharing != Sharing::kDdp; }

// Through memory, of a parameter whose gradient joins what travels and comes back: a copy and a division in place each
// read and write it.
double joining_bytes(const PlannedStep& step) {
  constexpr double kClear = 4, kCopy = 8, kInPlace = 8, kAdd = 12;
  if (step.sharing == Sharing::kNone || (step.world == 1 && step.sharing != Sharing::kFsdp)) return 0;
  const auto world = static_cast<double>(step.world);
  const Averaging averaging = averaging_over(step.world);
  const double before = kCopy + (averaging.predivide == 1 ? 0 : kInPlace);
  const double after = averaging.postdivide == 1 ? 0 : kInPlace;
  switch (step.sharing) {
    case Sharing::kFsdp:
      return before + (step.world == 1 ? 0 : (4 * world + 4 + after) / world);  // terms are read, their sum is written
    case Sharing::kZero2:
      return kClear + before + (kCopy + (world - 1) * kAdd + after + kCopy) / world;
    case Sharing::kDdp:
    case Sharing::kZero1:
      return kClear + before + after + kCopy;
    case Sharing::kNone:
      return 0;
  }
  runtime::unexpected("plan: sharing", static_cast<int>(step.sharing));
}

// The memory of a rank from the end of the forward pass to the end of the backward pass, unit by unit.
class Memory {
 public:
  explicit Memory(const PlannedStep& step)
      : step_(step),
        sharded_(step.sharing == Sharing::kFsdp && step.world > 1),
        part_(1 / static_cast<double>(step.world)) {
    const double count = parameters_of(step);
    whole_ = step.master_bytes * count;
    for (const PlannedUnit& unit : step.units) whole_ += unit.frozen_bytes;
    fixed_ = {.parameters = whole_ * (sharded_ ? part_ : 1),
              .states = step.state_bytes * count * (shares_states(step) ? part_ : 1)};
  }

  PlannedMemory peak() const {
    PlannedMemory most;
    if (sharded_) most.parameters = whole_;  // before it is cut into parts
    for (size_t unit = step_.units.size(); unit-- > 0;) {
      const PlannedMemory now = while_backward(unit);
      if (now.total() > most.total()) most = now;
    }
    return most;
  }

 private:
  PlannedMemory while_backward(size_t unit) const {
    PlannedMemory now = fixed_;
    const size_t inner = step_.units.size() - 1;
    // The unit's own activations are there until its last gradient is.
    now.activations = inner == 0 ? step_.activation_bytes
                                 : step_.activation_bytes * static_cast<double>(unit) / static_cast<double>(inner);
    double done = 0;  // gradients, whole
    for (size_t i = unit; i <= inner; ++i) {
      if (i == unit || !step_.releases_gradients) {
        done += step_.gradient_bytes * static_cast<double>(step_.units[i].parameters);
      }
    }
    if (!sharded_) {
      for (size_t i = 0; i <= unit; ++i) now.activations += step_.units[i].kept_bytes;
    }
    now.gradients = done * (sharded_ || step_.sharing == Sharing::kZero2 ? part_ : 1);
    if (step_.sharing == Sharing::kNone || step_.world == 1) return now;
    // A rank that sums for all holds what each sends.
    const double copies = step_.sharing == Sharing::kZero2 ? 2 : 1;
    now.travelling = sharded_ ? units_on_their_way(unit) : std::min(3 * step_.bucket_bytes, copies * done);
    return now;
  }

  // The unit that computes and the one that comes next, beside the outermost; gradients of the one that computes, and,
  // as they are sent and received, of the one before it.
  double units_on_their_way(size_t unit) const {
    const auto& units = step_.units;
    const PlannedUnit& root = units.front();
    double bytes =
        root.gathered_bytes + gradient_bytes(units[unit]) + kGradientBytes * static_cast<double>(units[unit].largest);
    if (step_.reshard_after_forward) {
      if (unit > 0) bytes += units[unit].gathered_bytes;
      if (unit > 1) bytes += units[unit - 1].gathered_bytes;
    } else {
      for (size_t i = 1; i <= unit; ++i) bytes += units[i].gathered_bytes;
    }
    // The outermost's gradients begin with what reads the last unit's output.
    if (unit > 0) bytes += gradient_bytes(root);
    return unit + 1 < units.size() ? bytes + 2 * gradient_bytes(units[unit + 1]) : bytes;
  }

  const PlannedStep& step_;
  bool sharded_;
  double part_;
  double whole_ = 0;  // of the parameters
  PlannedMemory fixed_;
};

// The units inside the outermost, first to last and back; `before` and `after` are told the unit and the time.
template <class Before, class After>
double backwards(const PlannedStep& step, double clock, Before before, After after) {
  const double joining = joining_bytes(step) / step.memory_bytes_per_second;  // seconds a parameter
  const auto seconds = [&](const PlannedUnit& unit) { return unit.share * (1 - kForwardShare) * step.compute_seconds; };
  clock += seconds(step.units.front());
  for (size_t i = step.units.size(); --i > 0;) {
    clock = std::max(clock, before(i, clock));
    clock += seconds(step.units[i]) + joining * static_cast<double>(step.units[i].parameters);
    after(i, clock);
  }
  clock += joining * static_cast<double>(step.units.front().parameters);
  after(0, clock);
  return clock;
}

double update_seconds(const PlannedStep& step) {
  const double part = shares_states(step) ? 1 / static_cast<double>(step.world) : 1;
  return part * update_bytes(step.units) / step.memory_bytes_per_second;
}

double fully_sharded_seconds(const PlannedStep& step, Link& link, PlannedBytes& sent) {
  const std::vector<PlannedUnit>& units = step.units;
  const auto gather = [&](size_t unit, double asked) {
    return link.scatter(asked, units[unit].gathered_bytes, sent.parameters);
  };
  // While a unit computes, the next one travels.
  double clock = gather(0, 0), there = units.size() > 1 ? gather(1, 0) : 0;
  for (size_t i = 1; i < units.size(); ++i) {
    clock = std::max(clock, there);
    if (i + 1 < units.size()) there = gather(i + 1, clock);
    clock += units[i].share * kForwardShare * step.compute_seconds;
  }
  clock += units.front().share * kForwardShare * step.compute_seconds;
  const bool again = step.reshard_after_forward;
  there = again && units.size() > 1 ? gather(units.size() - 1, clock) : 0;
  const auto before = [&](size_t unit, double now) {
    const double begin = std::max(now, there);
    if (again && unit > 1) there = gather(unit - 1, begin);
    return begin;
  };
  const auto after = [&](size_t unit, double now) { link.scatter(now, gradient_bytes(units[unit]), sent.gradients); };
  clock = backwards(step, clock, before, after);
  return std::max(clock, link.free_at()) + update_seconds(step);
}

double replicated_seconds(const PlannedStep& step, Link& link, PlannedBytes& sent) {
  double forward = 0, bucket = 0;
  for (const PlannedUnit& unit : step.units) forward += unit.share * kForwardShare * step.compute_seconds;
  const auto after = [&](size_t unit, double now) {
    bucket += gradient_bytes(step.units[unit]);
    if (bucket < step.bucket_bytes && unit > 0) return;
    const double bytes = std::exchange(bucket, 0);
    step.sharing == Sharing::kZero2 ? link.scatter(now, bytes, sent.gradients)
                                    : link.all_reduce(now, bytes, sent.gradients);
  };
  const double clock = backwards(
      step, forward, [](size_t, double now) { return now; }, after);
  const double updated = std::max(clock, link.free_at()) + update_seconds(step);
  if (step.sharing == Sharing::kDdp) return updated;
  return link.scatter(updated, step.master_bytes * parameters_of(step), sent.parameters);
}

}  // namespace

double update_bytes(const std::vector<PlannedUnit>& units) { return kUpdateBytes * count_of(units); }

StepPlan plan_step(const PlannedStep& step) {
  StepPlan plan;
  plan.memory = Memory(step).peak();
  plan.memory_seconds = update_seconds(step) + joining_bytes(step) * parameters_of(step) / step.memory_bytes_per_second;
  plan.step_seconds = step.compute_seconds + plan.memory_seconds;
  if (step.sharing == Sharing::kNone) return plan;
  Link link(step.network, step.world);
  const double beside = step.sharing == Sharing::kFsdp ? fully_sharded_seconds(step, link, plan.sent)
                                                       : replicated_seconds(step, link, plan.sent);
  plan.network_seconds = link.busy();
  plan.step_seconds = step.network.is_beside_cores ? beside : plan.step_seconds + plan.network_seconds;
  return plan;
}

}  // namespace plimsoll::shard
