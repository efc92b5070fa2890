#include <csignal>

#include "plimsoll/app/allocator.h"
#include "plimsoll/cli/command_line.h"
#include "plimsoll/cli/commands.h"

int main(int argc, char** argv) {
  using namespace plimsoll;
  app::keep_freed_memory();
  std::signal(SIGXFSZ, SIG_IGN);  // a file over the size limit is an error like any other, with its one line
  return cli::run_command_line(argc, argv,
                               {cli::train_command(), cli::compare_command(), cli::generate_command(),
                                cli::inspect_command(), cli::info_command()});
}
