"""The page at / of `plimsoll serve` in headless Chromium: chats, Stop, errors and what the page looks like. PLIMSOLL_SCREENSHOTS: a
folder that gets pictures of it."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import t5_command
import tiny_llama
from chromium import Browser
from served import CONTEXT, MESSAGES, serving, write_tiny

SIZES = {"wide": (1280, 800), "narrow": (360, 640)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(browser, tiny):
    with serving(tiny, "--watch", "guard") as served:
        yield served
        assert served.stop() == 0


@pytest.fixture
def page(browser, server):
    yield (page := browser.page(f"http://127.0.0.1:{server.port}/"))
    assert not page.events("Runtime.exceptionThrown"), "an error of the page's script"
    page.call("Page.close")


def set_field(page, name, value):
    """Types into one of the settings, which are open from then on."""
    if not page.value("document.querySelector('details').open"):
        page.click("summary")
    page.value(f"document.getElementById('{name}').value = ''")
    page.click(f"#{name}")
    page.type(str(value))
    # Leaving the field ends an edit, of which the browser does not always tell where the text came from a program.
    page.value(f"document.getElementById('{name}').dispatchEvent(new Event('change')) && 0")


def ask(page, text):
    page.value("document.getElementById('input').focus()")
    page.type(text)
    page.press("Enter")


# Replies come to the script until there are 20 KB, some eighty tokens; then nothing until it gives up or the test calls letGo().
# However long a test's process stands still, the reply has not ended, and is not so long that the page is busy with it alone.
HOLD = """
const ask = window.fetch;
window.fetch = async (address, options) => {
  const response = await ask(address, options);
  if (!response.ok || !options?.signal) return response;
  const held = new Promise((resolve) => { window.letGo = resolve; options.signal.addEventListener("abort", resolve); });
  let bytes = 0;
  const transform = (piece, controller) => { controller.enqueue(piece); if ((bytes += piece.length) > 20000) return held; };
  return new Response(response.body.pipeThrough(new TransformStream({ transform })), response);
};
0
"""

# A reply comes to the script all at once, or each event by itself.
COME = """
const ask = window.fetch;
window.fetch = async (address, options) => {
  const response = await ask(address, options);
  if (!response.ok || !options?.signal) return response;
  const whole = await response.text();
  const pieces = PIECES;
  const pull = async (controller) => {
    await new Promise((resolve) => setTimeout(resolve, 2));
    if (pieces.length) controller.enqueue(new TextEncoder().encode(pieces.shift()));
    else controller.close();
  };
  return new Response(new ReadableStream({ pull }), response);
};
0
"""
COMES = {"at once": "[whole]", "in pieces": "whole.split(/(?<=\\n\\n)/)"}


def texts(page, kind):
    return page.value(f"[...document.querySelectorAll('.message.{kind}')].map((element) => element.textContent)")


def notes(page):
    return page.value("[...document.querySelectorAll('.note')].map((element) => element.textContent)")


def typed(page):
    return page.value("document.getElementById('input').value")


def button(page):
    return page.value("document.getElementById('send').textContent")


def wait_for_end(page):
    page.wait("document.getElementById('send').textContent === 'Send'")


def wait_for_replies(page, count):
    """Replies that came whole."""
    wait_for_end(page)
    assert len(texts(page, "assistant")) == count and texts(page, "error") == []


def test_a_chat_answers_as_the_api_does(page, server, tiny):
    set_field(page, "temperature", 0)
    set_field(page, "max_tokens", 30)
    options: dict[str, Any] = {"model": "any", "temperature": 0, "max_tokens": 30}
    messages: list[Any] = []
    for question in ("Hello, who are you?", "And what do you do?"):
        messages.append({"role": "user", "content": question})
        text = server.client.chat.completions.create(**options, messages=messages).choices[0].message.content
        messages.append({"role": "assistant", "content": text})
        ask(page, question)
        wait_for_replies(page, len(messages) // 2)
        assert texts(page, "assistant")[-1] == text and texts(page, "user")[-1] == question
    assert texts(page, "error") == [] and button(page) == "Send"
    assert [note.split(" tokens")[0] for note in notes(page)] == ["30", "30"]
    page.wait("document.getElementById('model').options.length === 1")
    assert page.value("document.getElementById('model').value") == tiny.name
    page.click("#reset")
    assert texts(page, "user") == texts(page, "assistant") == notes(page) == []
    ask(page, MESSAGES[0]["content"])
    wait_for_replies(page, 1)
    assert texts(page, "assistant") == [messages[1]["content"]], "a new chat has forgotten the old one"


@pytest.mark.parametrize("come", COMES)
def test_a_reply_has_a_note_of_its_tokens_and_of_the_speed_where_it_can_be_seen(page, come):
    page.value(COME.replace("PIECES", COMES[come]))
    set_field(page, "temperature", 0)
    for number, (tokens, count) in enumerate(((20, "20 tokens"), (1, "1 token"))):
        set_field(page, "max_tokens", tokens)
        ask(page, "Hello")
        wait_for_replies(page, number + 1)
        has_speed = come == "in pieces" and tokens > 1
        seconds = r"\d+\.\d\d s"
        expected = rf"{count}, \d+\.\d a second; the first after {seconds}" if has_speed else f"{count} after {seconds}"
        assert re.fullmatch(expected, notes(page)[-1]), notes(page)
        speed = page.value("document.getElementById('speed').textContent")
        assert re.fullmatch(r"\d+\.\d tokens/s", speed) if has_speed else speed == ""


def test_nothing_is_asked_from_elsewhere(page, server):
    page.wait("document.getElementById('model').options.length === 1")
    asked = [event["request"]["url"] for event in page.events("Network.requestWillBeSent")]
    assert {url for url in asked if not url.startswith("data:")} >= {f"http://127.0.0.1:{server.port}/"}
    assert all(url.startswith((f"http://127.0.0.1:{server.port}/", "data:")) for url in asked), asked


def test_a_line_may_be_broken_and_what_is_empty_is_not_sent(page):
    page.value("document.getElementById('input').focus()")
    page.press("Enter")
    assert texts(page, "user") == []
    set_field(page, "max_tokens", 3)
    page.value("document.getElementById('input').focus()")
    page.type("one")
    page.press("Enter", shift=True)
    page.type("two <b>bold</b>")
    page.click("#send")
    assert texts(page, "user") == ["one\ntwo <b>bold</b>"]
    wait_for_end(page)


def test_stop_ends_a_reply_and_keeps_what_came(page, server):
    server.wait_until_idle()
    before = server.metric("written_tokens_total")
    set_field(page, "max_tokens", CONTEXT - 200)
    page.value(HOLD)
    ask(page, "Hello")
    page.wait("document.querySelector('.message.assistant')?.textContent.length > 20")
    assert button(page) == "Stop"
    page.click("#send")
    wait_for_end(page)
    server.wait_until_idle()
    assert server.metric("written_tokens_total") - before < CONTEXT - 200
    assert len(texts(page, "assistant")[0]) > 20 and texts(page, "error") == []
    set_field(page, "max_tokens", 5)
    ask(page, "Go on")
    wait_for_replies(page, 2)
    assert len(texts(page, "assistant")) == 2


def test_an_error_is_shown_and_the_next_message_works(page):
    set_field(page, "max_tokens", 5)
    set_field(page, "temperature", -1)
    ask(page, "Hello")
    page.wait("document.querySelectorAll('.message.error').length === 1")
    assert "temperature: expected 0 to 100, got -1" in texts(page, "error")[0]
    assert texts(page, "assistant") == [] and button(page) == "Send"
    assert typed(page) == "Hello", "what was not answered can be sent again"
    set_field(page, "temperature", 0)
    ask(page, "")
    wait_for_end(page)
    assert texts(page, "user")[-1] == "Hello" and len(texts(page, "assistant")) == 1 and typed(page) == ""


def test_a_text_typed_while_a_request_fails_stays(page):
    set_field(page, "temperature", -1)
    enter = "document.getElementById('input').value ="
    page.value(f"{enter} 'Hello'; document.getElementById('send').click(); {enter} 'And more'; 0")
    page.wait("document.querySelectorAll('.message.error').length === 1")
    wait_for_end(page)
    assert typed(page) == "And more"


def test_without_a_chat_template_each_text_is_a_prompt_by_itself(browser, tmp_path):
    t5_command.new_model(tmp_path)
    with serving(tmp_path) as served:
        page = browser.page(f"http://127.0.0.1:{served.port}/")
        page.wait("document.getElementById('input').placeholder.includes('no chat template')")
        assert page.value("document.getElementById('system').offsetParent === null")
        assert page.value("document.getElementById('max_tokens').placeholder") == "256"
        set_field(page, "temperature", 0)
        set_field(page, "max_tokens", 20)
        for number, text in enumerate(t5_command.SENTENCES[:2]):
            ask(page, text)
            wait_for_replies(page, number + 1)
            reply = served.client.completions.create(model="any", prompt=text, temperature=0, max_tokens=20)
            assert texts(page, "assistant")[-1] == reply.choices[0].text != ""
        assert texts(page, "error") == [] and not page.events("Runtime.exceptionThrown")
        page.call("Page.close")
        stop_that_has_warned(served)


def stop_that_has_warned(served):
    served.process.send_signal(signal.SIGTERM)
    served.process.communicate(timeout=300)
    assert served.process.returncode == 0


def test_without_a_chat_template_a_text_keeps_its_last_space(browser, tmp_path):
    tiny_llama.write(tmp_path, end=None, max_position_embeddings=CONTEXT)
    text = "Once upon a time "
    with serving(tmp_path) as served:
        page = browser.page(f"http://127.0.0.1:{served.port}/")
        page.wait("document.getElementById('input').placeholder.includes('no chat template')")
        set_field(page, "temperature", 0)
        set_field(page, "max_tokens", 20)
        ask(page, text)
        wait_for_replies(page, 1)
        reply, without = (
            served.client.completions.create(model="any", prompt=prompt, temperature=0, max_tokens=20).choices[0].text
            for prompt in (text, text.rstrip())
        )
        assert texts(page, "user") == [text]
        assert texts(page, "assistant") == [reply] != [without]
        page.call("Page.close")
        stop_that_has_warned(served)


def test_a_key_is_asked_for(browser, tiny):
    with serving(tiny, "--api-key", "sesame") as served:
        page = browser.page(f"http://127.0.0.1:{served.port}/")
        ask(page, "Hello")
        page.wait("document.querySelectorAll('.message.error').length === 1")
        assert "expected the key of this server" in texts(page, "error")[0]
        set_field(page, "key", "sesame")
        page.wait("document.getElementById('model').options.length === 1")
        set_field(page, "max_tokens", 5)
        ask(page, ", again")
        wait_for_end(page)
        assert texts(page, "user") == ["Hello", "Hello, again"]
        assert not page.events("Runtime.exceptionThrown")
        page.call("Page.close")
        assert served.stop() == 0


def test_a_server_that_goes_is_an_error(browser, tiny):
    with serving(tiny) as served:
        page = browser.page(f"http://127.0.0.1:{served.port}/")
        page.value(HOLD)
        ask(page, "Hello")
        page.wait("document.querySelector('.message.assistant')?.textContent.length > 20")
        served.process.send_signal(signal.SIGKILL)
        served.process.communicate(timeout=300)
        page.value("letGo()")
        page.wait("document.querySelectorAll('.message.error').length === 1")
        assert texts(page, "error")[0] and button(page) == "Send" and len(texts(page, "assistant")[0]) > 20
        assert not page.events("Runtime.exceptionThrown")
        page.call("Page.close")


def test_the_headroom_of_the_layers_is_shown(page, server):
    set_field(page, "max_tokens", 5)
    ask(page, "Hello")
    page.wait("document.querySelectorAll('#chart rect').length > 0")
    text = page.value("document.querySelector('#headroom span').textContent")
    assert text.startswith("headroom of ") and text.endswith("; 0 overflowed")


def expect_fits(page, width, height):
    assert page.value("document.documentElement.scrollWidth") <= width, "wider than the window"
    assert page.value("document.documentElement.scrollHeight") <= height, "only the chat and the settings scroll"
    for name in ("input", "send", "reset", "model"):
        box = page.value(f"document.getElementById('{name}').getBoundingClientRect().toJSON()")
        assert 0 <= box["left"] < box["right"] <= width and 0 <= box["top"] < box["bottom"] <= height, (name, box)
        assert name == "input" or box["height"] < 50, f"{name} has one line"


@pytest.mark.parametrize("size", SIZES)
def test_a_chat_fits_into_the_window(page, size, tmp_path):
    folder = Path(os.environ.get("PLIMSOLL_SCREENSHOTS", tmp_path))
    width, height = SIZES[size]
    page.resize(width, height)
    page.screenshot(folder / f"{size}-empty.png")
    set_field(page, "max_tokens", 150)
    ask(page, "Hello, who are you, and what do you do when a word is as long as " + "Donaudampfschiff" * 8 + "?")
    wait_for_replies(page, 1)
    set_field(page, "temperature", -1)
    ask(page, "And now with a temperature below zero")
    page.wait("document.querySelectorAll('.message.error').length === 1")
    page.screenshot(folder / f"{size}-settings.png")
    expect_fits(page, width, height)
    assert page.value("document.getElementById('chat').clientHeight") >= 100, "some of the chat is left beside the settings"
    page.click("summary")
    page.screenshot(folder / f"{size}-chat.png")
    expect_fits(page, width, height)
    assert page.value("document.getElementById('chat').clientHeight") > height / 4, "room for the chat"
    assert page.value(
        "(({scrollTop, clientHeight, scrollHeight}) => scrollTop + clientHeight >= scrollHeight - 40)(document.getElementById('chat'))"
    )
