#include "plimsoll/app/process/child_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "plimsoll/app/error.h"
#include "plimsoll/app/process/interrupt.h"

namespace plimsoll::app {
namespace {

void expect_one_thread() {
  const auto threads = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  if (threads != 1) fail("child process: expected to fork from a process of one thread, got {}", threads);
}

// A group of its own keeps the terminal's Ctrl-C from reaching the child twice.
[[noreturn]] void be_child(const std::function<int()>& body) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  const int code = body();
  std::fflush(nullptr);
  _exit(code);
}

int wait_for(pid_t child, const InterruptScope& interrupt) {
  constexpr useconds_t kPollMicroseconds = 20'000;
  bool passed_on = false;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (interrupt.requested() && !passed_on) {
      kill(child, SIGINT);
      passed_on = true;
    }
    usleep(kPollMicroseconds);
  }
  return status;
}

}  // namespace

int run_in_child(const std::function<int()>& body) {
  expect_one_thread();
  std::fflush(nullptr);
  const InterruptScope interrupt;
  const pid_t child = fork();
  if (child < 0) fail("child process: cannot fork: {}", std::strerror(errno));
  if (child == 0) be_child(body);
  const int status = wait_for(child, interrupt);
  if (WIFSIGNALED(status))
    fail("child process: ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return WEXITSTATUS(status);
}

}  // namespace plimsoll::app
