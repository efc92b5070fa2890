// For tests: the command as a user's shell runs it.
#pragma once

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "plimsoll/io/testing.h"

namespace plimsoll::cli {

struct Outcome {
  int exit_code = -1;  // 128 + signal if one ended it
  std::string output;
  std::string error;
};

class Program {
 public:
  // Starts it. `in_child` runs just before, in the new process.
  explicit Program(
      std::vector<std::string> arguments, const std::function<void()>& in_child = [] {}) {
    arguments.insert(arguments.begin(), PLIMSOLL_PROGRAM);
    child_ = fork();
    if (child_ < 0) throw std::runtime_error("cannot fork");
    if (child_ == 0) {
      redirect(STDOUT_FILENO, files_ / "output");
      redirect(STDERR_FILENO, files_ / "error");
      in_child();
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(argv.front(), argv.data());
      _exit(127);
    }
  }
  ~Program() {
    if (child_ > 0) send(SIGKILL), waitpid(child_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal) const { kill(child_, signal); }

  // For a program with in_child = be_traced: lets it run, and the processes that it forks, until one of them is about to
  // write and begun() is true. It stands still from then on, and so does every other at its next system call, until wait().
  // Threads beside the first ones go on.
  void hold_when(const std::function<bool()>& begun) {
    int status = 0;
    waitpid(child_, &status, 0);
    if (!WIFSTOPPED(status)) throw std::runtime_error("the program cannot be traced");
    ptrace(PTRACE_SETOPTIONS, child_, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL);
    held_ = {child_};
    for (pid_t process = child_; !(is_about_to_write(process) && begun());) {
      const bool passes_on =
          WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != (SIGTRAP | 0x80) && held_.contains(process);
      held_.insert(process);  // a new one, which begins with a SIGSTOP
      ptrace(PTRACE_SYSCALL, process, nullptr, passes_on ? WSTOPSIG(status) : 0);
      for (process = waitpid(-1, &status, __WALL); !WIFSTOPPED(status); process = waitpid(-1, &status, __WALL)) {
        held_.erase(process);
        if (process == child_) throw std::runtime_error("the program ended before the test held it");
      }
    }
  }
  static void be_traced() { ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); }

  Outcome wait() {
    int status = 0;
    bool has_ended = false;
    for (const pid_t process : held_) {
      if (ptrace(PTRACE_DETACH, process, nullptr, nullptr) == 0) continue;
      waitpid(process, &status, __WALL);  // one that had not come to its next call, or that a signal has ended
      if (WIFSTOPPED(status)) ptrace(PTRACE_DETACH, process, nullptr, nullptr);
      has_ended = has_ended || (process == child_ && !WIFSTOPPED(status));
    }
    while (!has_ended && waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    child_ = -1;
    return {.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
            .output = io::read_plainly(files_ / "output"),
            .error = io::read_plainly(files_ / "error")};
  }

 private:
  static void redirect(int descriptor, const std::filesystem::path& path) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, descriptor);
  }

  static bool is_about_to_write(pid_t process) {
    __ptrace_syscall_info call{};
    ptrace(PTRACE_GET_SYSCALL_INFO, process, sizeof(call), &call);
    return call.op == PTRACE_SYSCALL_INFO_ENTRY && call.entry.nr == SYS_write;
  }

  io::TemporaryDirectory files_;
  pid_t child_ = -1;
  std::set<pid_t> held_;
};

inline Outcome run_program(
    const std::vector<std::string>& arguments, const std::function<void()>& in_child = [] {}) {
  return Program(arguments, in_child).wait();
}

}  // namespace plimsoll::cli
