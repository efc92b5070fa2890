"""The log of `plimsoll serve`: a line of JSON for each request."""

import datetime
import json
import pathlib
import re
import signal
import time

import pytest
from served import CONTEXT, MESSAGES, SECONDS, openai, serving, streaming, write_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"))


def wait_for_lines(log, count):
    """A line follows the answer that it is about, and may stand behind that of a later request on another connection."""
    end = time.monotonic() + SECONDS
    while log.read_bytes().count(b"\n") < count:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.01)


def test_a_log_has_a_line_for_each_request(tiny, tmp_path):
    log = tmp_path / "log"
    begin = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    with serving(tiny, "--json", log) as served:
        served.client.completions.create(model="any", prompt=[1, 2, 3], max_tokens=5, temperature=0)
        wait_for_lines(log, 1)
        list(served.client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=4, n=2, temperature=0, stream=True))
        wait_for_lines(log, 2)
        served.client.completions.create(
            model="any",
            prompt="a",
            max_tokens=999,
            temperature=0,
            extra_body={"response_format": {"type": "json_object"}},
            stop="{",
        )
        wait_for_lines(log, 3)
        with pytest.raises(openai.BadRequestError):
            served.client.completions.create(model="any", prompt="a", temperature=-1)
        wait_for_lines(log, 4)
        served.ask("GET", "/nowhere%ff")
        wait_for_lines(log, 5)
        connection, response = streaming(served, CONTEXT - 100)
        response.close()
        connection.close()
        served.wait_until_idle()
        assert served.stop() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines = [line for line in lines if line["path"] != "/metrics"]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("POST", "/v1/completions", 200),
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/completions", 200),
        ("POST", "/v1/completions", 400),
        ("GET", "/nowhere\ufffd", 404),
        ("POST", "/v1/completions", 200),
    ]
    plain, chat, stopped, wrong, nowhere, gone = lines
    assert plain["model"] == tiny.name and plain["prompt_tokens"] == 3 and plain["completion_tokens"] == 5
    assert plain["finish_reasons"] == ["length"] and "error" not in plain
    assert chat["completion_tokens"] == 8 and chat["finish_reasons"] == ["length", "length"] and "error" not in chat
    assert stopped["finish_reasons"] == ["stop"] and 1 <= stopped["completion_tokens"] < 999
    assert wrong["error"].startswith("temperature: ") and "model" not in wrong
    assert "/nowhere\ufffd" in nowhere["error"]
    assert gone["error"] == "the client has gone" and gone["finish_reasons"] == [] and gone["completion_tokens"] > 0
    end = datetime.datetime.now(datetime.UTC)
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert begin <= datetime.datetime.fromisoformat(line["time"]) <= end
        assert 0 < line["seconds"] < (end - begin).total_seconds() + 1


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full, a file of a full disk")
def test_a_log_that_cannot_be_written_ends_no_replies(tiny):
    with serving(tiny, "--json", "/dev/full") as served:
        for _ in range(3):
            assert served.client.completions.create(model="any", prompt="a", max_tokens=2).usage.completion_tokens == 2
        served.process.send_signal(signal.SIGTERM)
        _, errors = served.process.communicate(timeout=300)
        assert served.process.returncode == 0
        assert errors.count("\n") == 1 and "requests are not logged any more" in errors, errors
