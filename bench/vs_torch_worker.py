"""One memory setting of vs_torch.py: times PyTorch's and Plimsoll's operator in turn, on request.

Protocol on stdin/stdout, one JSON object a line: prints {"ready": ...}; for each line that names a case prints {"torch": [seconds...],
"plimsoll": [seconds...]} or {"error": TEXT}; ends with stdin.
"""

import argparse
import json
import sys
import time

import torch


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def times(make, rounds):
    torch.manual_seed(1)
    try:
        torchs, ours = make()
        for _ in range(2):
            torchs()
            ours()
    except (RuntimeError, AttributeError, TypeError) as error:
        return {"error": str(error).splitlines()[0]}
    pairs = [(seconds(torchs), seconds(ours)) for _ in range(rounds)]
    return {"torch": [one for one, _ in pairs], "plimsoll": [one for _, one in pairs]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--caching", action="store_true", help="Plimsoll's allocator, for both")
    args = parser.parse_args()
    torch.ops.load_library(args.library)
    from vs_torch_cases import all_cases

    torch.set_num_threads(args.threads)
    if args.caching:
        torch.ops.plimsoll.use_caching_allocator()
    cases = all_cases()
    print(json.dumps({"ready": True, "version": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(times(cases[line.strip()], args.rounds)), flush=True)


if __name__ == "__main__":
    main()
