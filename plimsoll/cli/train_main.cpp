// The program of `make demo`: the commands that train, and none of what else the whole program has to compile.
#include "plimsoll/cli/command_line.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/start_process.h"

int main(int argc, char** argv) {
  using namespace plimsoll;
  cli::start_process();
  return cli::run_command_line(argc, argv, {cli::train_command(), cli::compare_command()});
}
