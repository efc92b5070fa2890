// For tests: the command as a user's shell runs it.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
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

  Outcome wait() {
    int status = 0;
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
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

  io::TemporaryDirectory files_;
  pid_t child_ = -1;
};

inline Outcome run_program(
    const std::vector<std::string>& arguments, const std::function<void()>& in_child = [] {}) {
  return Program(arguments, in_child).wait();
}

}  // namespace plimsoll::cli
