// Slots: the numbers of each op, one slot per name, such as "blocks.2.mlp.fc1/input". A non-finite value never
// disappears: it is counted here even where codes saturate and histories skip it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "plimsoll/format/format.h"
#include "plimsoll/watch/counts.h"

namespace plimsoll::watch {

// One tensor on its way into a format. amax is of the unscaled tensor, as kernels return it: NaN > Inf > finite.
struct Observation {
  format::Format format = format::Format::kFp32;
  float amax = 0;
  float inv_scale = 1;     // the codes hold value * inv_scale
  int64_t non_finite = 0;  // elements, where the kernel counts them; one that overflows counts as one otherwise
};

struct Record {
  std::string name;
  format::Format format = format::Format::kFp32;  // of the last call
  int64_t calls = 0;
  float amax = 0;       // largest finite one
  float inv_scale = 1;  // of the last call
  // log2(max_finite / (amax * inv_scale)), the lowest of all calls: below 0 values saturated or overflowed. Infinite
  // while all is zero, NaN while no call had a finite amax.
  double headroom_bits = std::numeric_limits<double>::quiet_NaN();
  int64_t non_finite = 0;              // elements
  int64_t first_non_finite_call = -1;  // call of this slot, counted from 0; -1: none
  int64_t first_non_finite_at =
      -1;              // observation of the whole registry, counted from 0, so that slots can be ordered in time
  Counts counts = {};  // Mode::kCount: of the calls that came near an end of the format
};

// Whether the format holds Inf or NaN then: codes saturate, and what is beyond FP16's or BF16's largest number
// by half a unit or more is Inf, even where the amax, which is that of FP32's values before they are rounded, is
// finite.
bool overflows(const Observation& observation);

// The headroom of one call; +infinity for an amax of 0, NaN for one that is not finite.
double headroom_bits(const Observation& observation);

struct NamedObservation {
  std::string name;
  Observation observation;
};

// Observations whose numbers still lie in the memory of a device. Thread-safe.
class Unread {
 public:
  virtual ~Unread() = default;
  // All of them in the order in which they were made, in one read; none is left.
  virtual std::vector<NamedObservation> read() = 0;
};

// The registry. Thread-safe.
class Slots {
 public:
  // Returns which call of this slot it is, counted from 0.
  int64_t report(std::string_view name, const Observation& observation);
  // The place where observations wait that were made before what is reported or asked for next; made by make() the
  // first time.
  Unread& unread(const std::function<std::unique_ptr<Unread>()>& make);
  void read_unread() const;
  // Adds counts to a slot that has been reported.
  void count(std::string_view name, const Counts& counts);

  std::vector<Record> records() const;  // by name
  // Slots that were not finite, the first to be so first; then the others by headroom, lowest first.
  std::vector<Record> worst(size_t count) const;
  std::vector<Record> non_finite() const;  // the slots that met any, the first to do so first
  void clear();

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  struct Registry {
    std::unordered_map<std::string, Record, Hash, std::equal_to<>> slots;
    int64_t observations = 0;
    std::unique_ptr<Unread> unread;

    int64_t add(std::string_view name, const Observation& observation);
    void read_unread();
  };
  mutable std::mutex mutex_;
  mutable Registry registry_;  // what waits is read when somebody asks
};

// Puts what was not finite first, in the order in which it came up, then the lowest headroom.
bool is_worse(const Record& a, const Record& b);

// One JSON object a line: {"name", "format", "calls", "amax", "headroom_bits", "non_finite", "first_non_finite_call"};
// an infinite headroom is null, and so are amax and headroom where no call had a finite amax. Where elements were
// counted: "counted", "overflowed", "flushed", "subnormal", "underflow_share", "underflow_mass_share", too.
void write_json_lines(std::ostream& out, const std::vector<Record>& records);

}  // namespace plimsoll::watch
