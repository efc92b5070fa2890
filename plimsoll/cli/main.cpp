#include "plimsoll/cli/command_line.h"
#include "plimsoll/cli/commands.h"
#include "plimsoll/cli/start_process.h"

int main(int argc, char** argv) {
  using namespace plimsoll;
  cli::start_process();
  return cli::run_command_line(
      argc, argv,
      {cli::train_command(), cli::compare_command(), cli::finetune_command(), cli::generate_command(),
       cli::inspect_command(), cli::consolidate_command(), cli::convert_command(), cli::merge_command(),
       cli::quantize_command(), cli::serve_command(), cli::shard_plan_command(), cli::t5_command(),
       cli::gauge_command(), cli::parity_command(), cli::line_command(), cli::audit_command(), cli::logprobs_command(),
       cli::mmlu_command(), cli::info_command()});
}
