// Time by op. Ops open a span with the work that they do; spans nest, and each one's own time is what the spans inside
// it leave. If nobody records, a span costs a thread-local read.
//
//   watch::Profile profile;
//   {
//     const watch::Recording recording(profile);  // of this thread
//     const watch::Span forward("forward");       // an outermost span is a phase
//     const watch::Span span("gemm", {.operations = 2.0 * m * n * k, .bytes = read_and_written});
//   }
//   for (const watch::SpanTotals& row : profile.totals()) ...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::watch {

struct Work {
  double operations = 0;  // multiplications and additions, two a multiply-add; 0 where memory is what counts
  double bytes = 0;       // read and written
};

// All spans of one name in one phase.
struct SpanTotals {
  std::string phase;
  std::string name;  // the phase's own name: what no span inside it accounts for
  int64_t calls = 0;
  double own_seconds = 0;
  Work work = {};
};

// One span as it ran; times are from the start of the recording's clock.
struct SpanEvent {
  size_t totals;  // index into Profile::totals()
  int64_t begin_ns, end_ns;
  Work work = {};
};

class Profile {
 public:
  // In the order in which they first ran; phases before what is inside them.
  const std::vector<SpanTotals>& totals() const { return totals_; }
  // In the order in which they ended.
  const std::vector<SpanEvent>& events() const { return events_; }
  // Under recording, spans or none.
  double seconds() const { return static_cast<double>(recorded_ns_) * 1e-9; }

 private:
  friend class Recording;
  friend class Span;
  friend size_t open_spans();

  struct Open {
    size_t totals;
    int64_t begin_ns;
    int64_t inner_ns = 0;  // of the spans inside
    Work work = {};
  };

  void open(std::string_view name, const Work& work);
  void close();
  size_t totals_of(std::string_view phase, std::string_view name);

  std::vector<SpanTotals> totals_;
  std::vector<SpanEvent> events_;
  std::vector<Open> open_;
  int64_t recorded_ns_ = 0;
};

// Puts a profile in force on the constructing thread, until destruction there. Several recordings of one profile add
// up. Nests: the inner one holds.
class Recording {
 public:
  explicit Recording(Profile& profile);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  Profile& profile_;
  Profile* previous_;
  int64_t begin_ns_;
};

class Span {
 public:
  explicit Span(std::string_view name, const Work& work = {});
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  // Work that is known only after the span has begun.
  void add(const Work& work);

 private:
  Profile* profile_;  // the one in force at construction, or nullptr
};

// Number of open spans in the profile in force on this thread; 0 if nobody records.
size_t open_spans();

}  // namespace plimsoll::watch
