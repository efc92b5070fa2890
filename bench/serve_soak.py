"""Mixed traffic to one server for a long time, and what the server holds meanwhile; bench/serve.py --soak runs it."""

import contextlib
import http.client
import json
import os
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

WORDS = [f"word{number}" for number in range(1000)]
STARTS = [" ".join(random.Random(number).choices(WORDS, k=80)) for number in range(4)]  # that requests have in common


def bytes_of(pid, name):
    """Size that a line of the process's status gives: "VmRSS", "VmHWM"."""
    (kilobytes,) = re.findall(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(kilobytes)


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def body_of(model, draw):
    """A request of any kind: short or long, greedy or drawn, JSON, several choices, and now and then a wrong one."""
    prompt = " ".join(draw.choices(WORDS, k=draw.randrange(1, 120)))
    body = {
        "model": model,
        "prompt": prompt if draw.random() < 0.6 else draw.choice(STARTS) + prompt,
        "max_tokens": draw.choice([1, 8, 40, 150]),
        "temperature": draw.choice([0, 0.8]),
        "stream": draw.random() < 0.6,
        "n": draw.choice([1, 1, 1, 3]),
    }
    if draw.random() < 0.1:
        body["response_format"] = {"type": "json_object"}
    if draw.random() < 0.05:
        body["temperature"] = "warm"
    return body


def ask(port, model, draw):
    """One request, which one client in ten drops halfway. Returns the kind of its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body_of(model, draw)), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if draw.random() < 0.1:
            response.read(draw.randrange(1, 400))
            return "dropped"
        response.read()
        return str(response.status)


def soak(server, seconds, clients):
    """Rows of each minute: seconds, resident bytes, open files and ends of requests, by kind, since the start."""
    end = time.monotonic() + seconds
    process, models, lock = server.process, server.models(), threading.Lock()
    ends: dict[str, int] = {}
    rows: list[dict[str, Any]] = []

    def run(client):
        draw = random.Random(client)
        while time.monotonic() < end:
            kind = ask(server.port, draw.choice(models), draw)
            with lock:
                ends[kind] = ends.get(kind, 0) + 1

    def row(start):
        with lock:
            counts = dict(sorted(ends.items()))
        rows.append({
            "seconds": round(time.monotonic() - start),
            "resident_bytes": bytes_of(process.pid, "VmRSS"),
            "open_files": open_files(process.pid),
            "ends": counts,
        })  # fmt: skip
        last = rows[-1]
        print(f"{last['seconds']:6} s{last['resident_bytes'] / 1e6:9.0f} MB{last['open_files']:6} files  {counts}", flush=True)

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    start = time.monotonic()
    row(start)
    for thread in threads:
        thread.start()
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 60))
        row(start)
    for thread in threads:
        thread.join()
    time.sleep(6)  # connections that are kept close after five seconds
    row(start)
    return rows
