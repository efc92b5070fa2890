// For tests: work in a process of its own, which may be killed at any of its changes of a directory.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <set>
#include <stdexcept>

namespace plimsoll::io {

class ForkedChild {
 public:
  // The exit code is 0 if `body` returns, 1 if it throws.
  explicit ForkedChild(const std::function<void()>& body) : child_(fork()) {
    if (child_ < 0) throw std::runtime_error("cannot fork");
    if (child_ > 0) return;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  ~ForkedChild() {
    if (child_ > 0) kill(), wait();
  }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;

  pid_t id() const { return child_; }
  void kill() const { ::kill(child_, SIGKILL); }

  // The exit code, or 128 + the signal that ended it.
  int wait() {
    const int status = wait_for_change();
    child_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  // The status of a child that is traced, when it stops or ends.
  int wait_for_change() const {
    int status = 0;
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }

 private:
  pid_t child_;
};

// Whether a process may trace its children here, which containers can forbid.
inline bool can_trace() {
  ForkedChild child([] {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
  });
  return child.wait() == 0;
}

// Kills the process of `body` just before its `count`-th system call that changes what a directory holds. False if it
// makes fewer; it has ended then. What happens between two of these calls no other process can tell from the names.
inline bool killed_at_change(int count, const std::function<void()>& body) {
  static const std::set<uint64_t> kChanges = {SYS_rename,   SYS_renameat, SYS_renameat2, SYS_unlink,
                                              SYS_unlinkat, SYS_rmdir,    SYS_mkdir,     SYS_mkdirat};
  ForkedChild child([&] {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) throw std::runtime_error("cannot be traced");
    ::raise(SIGSTOP);
    body();
  });
  child.wait_for_change();
  ptrace(PTRACE_SETOPTIONS, child.id(), nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  while (true) {
    ptrace(PTRACE_SYSCALL, child.id(), nullptr, nullptr);
    const int status = child.wait_for_change();
    if (!WIFSTOPPED(status)) {
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw std::runtime_error("the child failed by itself");
      return false;
    }
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
    __ptrace_syscall_info call{};
    ptrace(PTRACE_GET_SYSCALL_INFO, child.id(), sizeof(call), &call);
    if (call.op == PTRACE_SYSCALL_INFO_ENTRY && kChanges.contains(call.entry.nr) && --count == 0) return true;
  }
}

// From here on this process cannot exchange two names, as on file systems that lack it.
inline void forbid_exchange() {
  std::array<sock_filter, 4> program = {{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                         BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 1),
                                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
                                         BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    throw std::runtime_error("cannot filter system calls");
  }
}

}  // namespace plimsoll::io
