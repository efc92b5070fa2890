// The sub-commands. Each file holds one: its table and what it prints.
#pragma once

#include "plimsoll/cli/command.h"

namespace plimsoll::cli {

Command train_command();
Command line_command();
Command compare_command();
Command audit_command();
Command logprobs_command();
Command finetune_command();
Command generate_command();
Command inspect_command();
Command consolidate_command();
Command convert_command();
Command merge_command();
Command quantize_command();
Command serve_command();
Command shard_plan_command();
Command t5_command();
Command gauge_command();
Command parity_command();
Command mmlu_command();
Command info_command();

}  // namespace plimsoll::cli
