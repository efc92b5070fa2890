// Torch's operators and our own, as the modes that follow numbers from op to op see them: between the products they are
// what makes, absorbs and spreads Inf and NaN (the residual stream's sums, masks, activations).
#pragma once

#include <string>

#include "plimsoll/ops/watch/shadow_window.h"
#include "plimsoll/watch/session.h"

namespace plimsoll::ops {

// Watches the operators that this thread runs from now on, as long as the session is in force, if its mode follows
// them; does nothing the second time. An operator without a path of its own has its name and "after" the last product.
void observe_operators(watch::Session& session);

// A call of a module begins and ends. In between the products, norms and softmaxes that torch runs for it report their
// operands and results under its path, in every mode. is_layer: it runs one such operator, which has that path alone.
// An empty path: the module's products report themselves.
struct ModuleCall {
  std::string path;
  bool is_layer = false;
};
void enter_module(watch::Session& session, const ModuleCall& call);
void leave_module(watch::Session& session, const ModuleCall& call);

// Throws c10::Error with the first incident, if there is one.
void stop_at_incident(const watch::Session& session);

// The window of a session whose operators are observed; nullptr unless its mode is kShadow.
ShadowWindow* shadow_window(const watch::Session& session);

}  // namespace plimsoll::ops
