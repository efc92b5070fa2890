// Incidents: the ops that made Inf or NaN of finite operands, enough of each to replay it, and what became of the
// result.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "plimsoll/format/format.h"

namespace plimsoll::watch {

// Result of the ops that read an Inf. The worst of all of them counts, absorption excepted: it ends a chain.
enum class Harm : uint8_t {
  kAbsorbed,      // finite again: tanh of Inf, softmax of -Inf
  kPropagating,   // Inf
  kNanProducing,  // Inf - Inf, 0 * Inf
};
std::string_view name(Harm harm);

struct TensorFacts {
  std::string name;  // "input", "weight", "self"
  std::vector<int64_t> shape;
  format::Format format = format::Format::kFp32;
  float amax = 0;
  std::optional<double> at_place = {};  // elementwise ops: the element that the first bad one was made of
};

// One term of a dot product.
struct Term {
  int64_t index = 0;  // along the inner dimension
  double a = 0, b = 0;
  double product() const { return a * b; }
};

// Mode::kShadow: the op once more, its result in FP32.
struct Replay {
  float amax = 0;
  double headroom_bits = 0;   // of the format, with the FP32 amax: below 0 by the bits that are missing
  double relative_error = 0;  // L2, of the elements that are finite
};

// Mode::kShadow: an op near the first bad one, after FP32's values of those before it.
struct WindowStep {
  std::string path;
  float amax = 0;  // of its result
  Replay replay = {};
};

struct Consumer {
  std::string path;
  Harm harm = Harm::kPropagating;
};

// One op before another.
struct Step {
  std::string path;
  float amax = 0;
  double headroom_bits = 0;
};

struct Incident {
  std::string path;  // "encoder.block.2.layer.1.DenseReluDense.wo", or "aten::add after encoder.block..."
  std::string op;    // "gemm output", "aten::add"
  int64_t call = 0;  // of this path, counted from 0
  std::vector<TensorFacts> operands = {};
  TensorFacts result = {};
  int64_t bad_elements = 0;
  int64_t row = 0, column = 0;       // of the first bad element, with all dimensions but the last as one
  int64_t token = 0;                 // its index along the last dimension but one
  std::optional<double> value = {};  // that it should have had
  std::optional<Term> largest_term = {};
  std::string instruction = {};  // Mode::kTrap: that overflowed
  std::vector<std::string> backtrace = {};
  std::vector<Step> before = {};  // the last first
  std::optional<Replay> replay = {};
  std::vector<WindowStep> window = {};  // in the order of the calculation; of the first incident
  std::vector<Consumer> consumers = {};
  Harm harm = Harm::kPropagating;
};

// The registry. Thread-safe.
class Incidents {
 public:
  // A step of the calculation, for Incident::before and for the paths of ops without one of their own.
  void step(std::string_view path, float amax, double headroom_bits);
  std::string last_path() const;
  int64_t steps() const;  // so far

  // Calls of this path so far; this one counts.
  int64_t next_call(std::string_view path);

  // Whether an incident of this path is known: details are looked up once.
  bool knows(std::string_view path) const;
  void add(Incident incident);
  bool none() const;

  // The next step of the first incident's window.
  void around(WindowStep step);

  // An op read what an incident left. It is a consumer of the last one.
  void follow(std::string_view path, Harm harm);

  std::vector<Incident> all() const;  // the first to happen first
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<Incident> incidents_;
  std::vector<Step> steps_;  // the last kWindow
  int64_t steps_taken_ = 0;
  std::unordered_map<std::string, int64_t> calls_;
};

}  // namespace plimsoll::watch
