// Scopes that Python's `with` holds open: entered by operators, left by a function of C.
//
// A KeyboardInterrupt comes between two instructions of Python, and never inside a call of C. A scope whose end were
// written in Python could be left open by one; the end of these is a single call (plimsoll/_scope.py).
#pragma once

#include <cstdint>
#include <memory>

#include "plimsoll/ops/scaling/scaling_step.h"

namespace plimsoll::bind {

class Scope {
 public:
  virtual ~Scope() = default;  // ends it, as an exception would
  // Ends it; what a normal end has still to do, which may fail and takes its time.
  virtual std::shared_ptr<ops::ScalingStep> leave() { return nullptr; }
  // `inner`, of this thread, was entered later and is still open.
  virtual void ends_before(Scope& /*inner*/) {}
  // Whether layers look for it.
  virtual bool is_fp8() const { return false; }
};

// Enters it on the calling thread and gives its number, which no other has. owner: the object of Python that will leave
// it.
int64_t enter_scope(int64_t owner, std::unique_ptr<Scope> scope);

}  // namespace plimsoll::bind
