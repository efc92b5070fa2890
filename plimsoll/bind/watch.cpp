// plimsoll.watch and plimsoll.audit: a watch::Session and a watch::Audit that Python opens and closes.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <sstream>

#include "plimsoll/bind/layer_state.h"
#include "plimsoll/bind/scopes.h"
#include "plimsoll/ops/watch/audited_torch.h"
#include "plimsoll/ops/watch/watched_operators.h"
#include "plimsoll/recipe/names.h"
#include "plimsoll/watch/audit.h"
#include "plimsoll/watch/report.h"

namespace plimsoll::bind {
namespace {

watch::Mode mode_of(const std::string& name) {
  const std::optional<watch::Mode> mode = watch::parse_mode(name);
  TORCH_CHECK_VALUE(mode.has_value(), recipe::unknown_name("mode of the watch", name, watch::kModeNames));
  return *mode;
}

// In force on the thread that enters it until that scope is left; what it has seen stays.
struct Watch : torch::CustomClassHolder {
  Watch(const std::string& mode, double warn_bits, bool stops)
      : options{.mode = mode_of(mode), .warn_bits = warn_bits, .stops = stops} {}

  void begin() {
    TORCH_CHECK(session == nullptr, "watch: expected a session that is not in force, got one that is");
    session = std::make_unique<watch::Session>(options);
  }
  void end() {
    text_seen = text();
    lines_seen = json_lines();
    session.reset();
  }

  std::string text() const {
    return written([](auto& out, const auto& of) { watch::write_text(out, of); }, text_seen);
  }
  std::string json_lines() const {
    return written([](auto& out, const auto& of) { watch::write_json_lines(out, of); }, lines_seen);
  }

  watch::SessionOptions options;
  std::unique_ptr<watch::Session> session;
  std::string text_seen, lines_seen;  // of the session that was in force last

 private:
  template <class Write>
  std::string written(Write write, const std::string& seen) const {
    if (session == nullptr) return seen;
    std::ostringstream out;
    write(out, *session);
    return out.str();
  }
};

class WatchScope final : public Scope {
 public:
  explicit WatchScope(c10::intrusive_ptr<Watch> watch) : watch_(std::move(watch)) { watch_->begin(); }
  ~WatchScope() override { watch_->end(); }

 private:
  c10::intrusive_ptr<Watch> watch_;
};

void enter_watch(const c10::intrusive_ptr<Watch>& watch, int64_t owner) {
  enter_scope(owner, std::make_unique<WatchScope>(watch));
}

// Records on the threads that enter it; rows of all its scopes add up.
struct Audit : torch::CustomClassHolder {
  std::string json_lines() const {
    std::ostringstream out;
    watch::write_json_lines(out, audit);
    return out.str();
  }

  watch::Audit audit;
  int64_t scopes = 0;  // that are open
};

class AuditScope final : public Scope {
 public:
  explicit AuditScope(c10::intrusive_ptr<Audit> audit) : audit_(std::move(audit)), recording_(&audit_->audit) {
    ++audit_->scopes;
  }
  ~AuditScope() override { --audit_->scopes; }

 private:
  c10::intrusive_ptr<Audit> audit_;
  watch::AuditRecording recording_;
  ops::AuditedTorch torch_rows_;
};

void enter_audit(const c10::intrusive_ptr<Audit>& audit, int64_t owner) {
  enter_scope(owner, std::make_unique<AuditScope>(audit));
}

void enter_module(std::string path, bool is_layer) {
  if (watch::Audit* const audit = watch::auditing(); audit != nullptr && !path.empty()) audit->enter(path);
  if (watch::Session* const session = watch::current()) ops::enter_module(*session, {std::move(path), is_layer});
}

void leave_module(std::string path) {
  if (watch::Audit* const audit = watch::auditing(); audit != nullptr && !path.empty()) audit->leave(path);
  if (watch::Session* const session = watch::current()) ops::leave_module(*session, {std::move(path)});
}

void stop_at_incident() {
  const watch::Session* const session = watch::current();
  if (session != nullptr && session->stops()) ops::stop_at_incident(*session);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(plimsoll, library) {
  library.def("name_product(Tensor key, str name) -> ()", &name_product);
  library.def("enter_module(str path, *, bool is_layer) -> ()", &enter_module);
  library.def("leave_module(str path) -> ()", &leave_module);
  library.def("stop_at_incident() -> ()", &stop_at_incident);
  library.class_<Watch>("Watch")
      .def("enter", &enter_watch)
      .def("is_in_force", [](const c10::intrusive_ptr<Watch>& self) { return self->session != nullptr; })
      .def("text", &Watch::text)
      .def("json_lines", &Watch::json_lines);
  library.class_<Audit>("Audit")
      .def("enter", &enter_audit)
      .def("is_in_force", [](const c10::intrusive_ptr<Audit>& self) { return self->scopes > 0; })
      .def("json_lines", &Audit::json_lines);
  library.def("audit_session() -> __torch__.torch.classes.plimsoll.Audit", [] { return c10::make_intrusive<Audit>(); });
  library.def("watch_session(*, str mode, float warn_bits, bool stops) -> __torch__.torch.classes.plimsoll.Watch",
              [](const std::string& mode, double warn_bits, bool stops) {
                return c10::make_intrusive<Watch>(mode, warn_bits, stops);
              });
}

}  // namespace plimsoll::bind
