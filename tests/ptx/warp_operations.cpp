#include <algorithm>

#include "tests/ptx/operations.h"

namespace plimsoll::ptx {
namespace {

using Kind = Operand::Kind;
using Lanes = std::vector<Thread*>;

Step on_warp(const Operand& mask, WarpAction action) {
  return {.kind = Step::Kind::kWarp, .action = {}, .warp_action = std::move(action), .find_mask = [&mask](Thread& t) {
            t.mask = get<uint32_t>(t, mask);
          }};
}

enum class Shuffle { kUp, kDown, kButterfly, kIndex };

// Lane that a lane reads, and whether it lies within the lane's segment.
struct Source {
  uint32_t lane;
  bool is_within;
};
Source source_of(Shuffle shuffle, uint32_t lane, uint32_t b, uint32_t c) {
  const uint32_t segment = c >> 8 & 31, clamp = c & 31;
  const uint32_t last = (lane & segment) | (clamp & ~segment & 31), first = lane & segment;
  b &= 31;
  int64_t source = 0;
  bool is_within = false;
  switch (shuffle) {
    case Shuffle::kUp:
      source = int64_t{lane} - b;
      is_within = source >= int64_t{last};
      break;
    case Shuffle::kDown:
      source = int64_t{lane} + b;
      is_within = source <= int64_t{last};
      break;
    case Shuffle::kButterfly:
      source = lane ^ b;
      is_within = source <= int64_t{last};
      break;
    case Shuffle::kIndex:
      source = first | (b & ~segment);
      is_within = source <= int64_t{last};
      break;
  }
  return {is_within ? static_cast<uint32_t>(source) : lane, is_within};
}

// shfl.sync.bfly.b32 d|p, a, b, c, mask
std::optional<Step> shuffle(const Instruction& i) {
  Shuffle kind = Shuffle::kUp;
  if (i.text == "shfl.sync.down.b32") {
    kind = Shuffle::kDown;
  } else if (i.text == "shfl.sync.bfly.b32") {
    kind = Shuffle::kButterfly;
  } else if (i.text == "shfl.sync.idx.b32") {
    kind = Shuffle::kIndex;
  } else if (i.text != "shfl.sync.up.b32") {
    return std::nullopt;
  }
  return on_warp(i.operands.at(4), [&o = i.operands, kind](const Lanes& lanes) {
    std::vector<uint64_t> values(32);
    for (const Thread* lane : lanes) values[lane->lane()] = get<uint32_t>(*lane, o.at(1));
    for (Thread* lane : lanes) {
      const Source source = source_of(kind, lane->lane(), get<uint32_t>(*lane, o.at(2)), get<uint32_t>(*lane, o.at(3)));
      if ((lane->mask >> source.lane & 1) == 0) {
        throw Fault("lane " + std::to_string(lane->lane()) + " reads lane " + std::to_string(source.lane) +
                    ", which is not in the mask");
      }
      const Operand& d = o.at(0).kind == Kind::kVector ? o[0].parts.at(0) : o[0];
      put(*lane, d, values[source.lane]);
      if (o[0].kind == Kind::kVector) put(*lane, o[0].parts.at(1), source.is_within ? 1 : 0);
    }
  });
}

// vote.sync.any.pred d, a, mask
std::optional<Step> vote(const Instruction& i) {
  const bool is_ballot = i.text == "vote.sync.ballot.b32", is_any = i.text == "vote.sync.any.pred";
  if (!is_ballot && !is_any && i.text != "vote.sync.all.pred") return std::nullopt;
  return on_warp(i.operands.at(2), [&o = i.operands, is_ballot, is_any](const Lanes& lanes) {
    uint32_t yes = 0;
    for (const Thread* lane : lanes) yes |= value_of(*lane, o.at(1)) != 0 ? uint32_t{1} << lane->lane() : 0;
    const uint64_t result = is_ballot ? yes : is_any ? yes != 0 : yes == lanes[0]->mask;
    for (Thread* lane : lanes) put(*lane, o.at(0), result);
  });
}

// redux.sync.max.s32 d, a, mask
template <class T>
std::optional<Step> reduction(const Instruction& i) {
  if (!are_known(i, {"sync", "max", "min", "add", "s32", "u32"})) return std::nullopt;
  return on_warp(i.operands.at(2), [&i](const Lanes& lanes) {
    T result = get<T>(*lanes[0], i.operands.at(1));
    for (const Thread* lane : lanes) {
      if (lane == lanes[0]) continue;
      const T x = get<T>(*lane, i.operands[1]);
      result = i.has("max") ? std::max(result, x) : i.has("min") ? std::min(result, x) : static_cast<T>(result + x);
    }
    for (Thread* lane : lanes) set<T>(*lane, i.operands.at(0), result);
  });
}

// A barrier of all of a warp's lanes is one for memory, too; of fewer it is taken for none.
Step warp_barrier(const Instruction& i) {
  return on_warp(i.operands.at(0), [](const Lanes& lanes) {
    if (lanes.size() < 32) return;
    for (Thread* lane : lanes) ++lane->now.warp_time;
  });
}

}  // namespace

std::optional<Step> make_warp(const Instruction& i) {
  const std::string& name = i.words[0];
  if (name == "shfl") return shuffle(i);
  if (name == "vote") return vote(i);
  if (i.text == "bar.warp.sync") return warp_barrier(i);
  if (name == "redux" && i.last() == "s32") return reduction<int32_t>(i);
  if (name == "redux" && i.last() == "u32") return reduction<uint32_t>(i);
  return std::nullopt;
}

}  // namespace plimsoll::ptx
