"""The page of a trace in a real browser: it shows what the lines say, keeps text text, and asks nobody for anything."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from mdlm.checkpoint import load_checkpoint
from mdlm.errors import UserError
from sample.autoregressive import AutoregressiveConfig, decode
from sample.config import DenoiseConfig
from sample.denoise import denoise
from sample.generation import pad_left
from sample.infill import Layout, Marker, Request, answer
from sample.page import page, write_page
from sample.presets import preset
from sample.trace import TraceWriter, replay
from tests.sample.browser import PROGRAM, Browser, Tab

NASTY = "<b>x</b></script><script>alert(1)</script><!-- &amp; \\u003c"


STATES = ("masked", "fresh", "settled", "revoked", "fixed")


def cells(tab):
    """Every position's state and text."""
    script = "[...document.querySelectorAll('#response span')].map((s) => [s.className, s.textContent])"
    return [(set(names.split()), text) for names, text in tab.evaluate(script)]


def answer_on(tab):
    return "".join(text for names, text in cells(tab) if "dropped" not in names)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if PROGRAM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome here")
    browser = Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """`opened(lines, fragment)`: the page of these lines in a tab."""
    tabs = []

    def open_page(lines, fragment="", **emulated):
        path = tmp_path / "trace.html"
        write_page(path, lines)
        tabs.append(Tab(browser, f"{path.as_uri()}{fragment}", **emulated))
        return tabs[-1]

    yield open_page
    for tab in tabs:
        tab.close()


def decoded(writer, model, requests, config):
    """Adds a decode to the writer and returns its answers."""
    tokenizer, prompts = writer.tokenizer, [request.prompt for request in requests]
    if isinstance(config, AutoregressiveConfig):
        generation = decode(model, prompts, config)
    else:
        tokens_BP, valid_BP = pad_left(prompts, tokenizer.pad_id)
        response_BR = torch.tensor([request.response for request in requests])
        generation = denoise(
            model,
            torch.cat([tokens_BP, response_BR], dim=1),
            config,
            mask_id=tokenizer.mask_id,
            end_id=tokenizer.end_id,
            valid_BL=torch.cat([valid_BP, torch.ones_like(response_BR, dtype=torch.bool)], dim=1),
            response_start=tokens_BP.shape[1],
        )
    writer.batch(requests, generation)
    ids = {"mask_id": tokenizer.mask_id, "end_id": tokenizer.end_id}
    rows = zip(requests, generation.tokens_BL[:, generation.response_start :].tolist(), strict=True)
    return [
        tokenizer.decode(answer(tokens, request.response, **ids, open_gaps=request.open_gaps))
        for request, tokens in rows
    ]


@pytest.fixture
def traced(checkpoints, tokenizer):
    """`traced(arm, config, texts, template)`: the lines of a decode by a random model, and its answers."""

    def trace(arm, config, texts, template=None):
        model, _ = load_checkpoint(checkpoints[arm])
        layout = Layout(tokenizer, model.config, Marker(), response_length=20)
        writer = TraceWriter(tokenizer, {"checkpoint": f"runs/{arm}/step-1", "settings": {"score": "confidence"}})
        requests = layout.requests(texts, template=template, max_new_tokens=None if template else 20)
        return writer.lines, decoded(writer, model, requests, config)

    return trace


def spelled(tokenizer, text, prompt="p", logit=30.0):
    """The lines of a decode whose model is sure of this text and its end, four tokens a pass."""
    tokens = [*tokenizer.encode(text), tokenizer.end_id]
    logits_LV = torch.nn.functional.one_hot(torch.tensor([0, *tokens]), tokenizer.vocab_size) * logit
    writer = TraceWriter(tokenizer, {"checkpoint": f"runs/{NASTY}", "settings": {"score": "confidence"}})
    requests = [Request(prompt, [tokenizer.begin_id], [tokenizer.mask_id] * len(tokens))]
    config = DenoiseConfig(trace=True, max_denoising_steps=-(-len(tokens) // 4))
    assert decoded(writer, lambda tokens_BL: logits_LV[None], requests, config) == [text]
    return writer.lines


def drawn(tokenizer, tokens):
    """The text that some tokens show; behind a gap it begins anew."""
    runs = [[]]
    for token in tokens:
        if token == tokenizer.mask_id:
            runs.append([])
        else:
            runs[-1].append(token)
    return "".join(map(tokenizer.decode, runs))


TRACES = {
    "block": ("block_diffusion", DenoiseConfig(trace=True, threshold=0.3), ["the cat", "é and", "x"]),
    "doubting": ("masked_diffusion", preset("wino", trace=True, max_denoising_steps=4, temperature=9.0), ["the cat"]),
    "clock": ("masked_diffusion", preset("remdm", trace=True, max_denoising_steps=12, eta=0.3), ["Ada", "the mat"]),
    "template": ("masked_diffusion", DenoiseConfig(trace=True), ["Ada"], '{"born":<|mask:4|>,"é":<|mask:3|>}'),
    "autoregressive": ("autoregressive", AutoregressiveConfig(max_new_tokens=20), ["the cat", "é and"]),
}


def steps(lines, row):
    """What the lines say of one row: its tokens, what was committed and what revoked, at the start and by pass."""
    header, *passes, _ = lines
    yield replay([header])[row], set(), set()
    own = [n for n, line in enumerate(passes) if any(part["row"] == row for part in line["rows"])]
    for n in own:
        (part,) = [part for part in passes[n]["rows"] if part["row"] == row]
        shown = lines if n == own[-1] else [header, *passes[: n + 1]]
        revoked = set(part["revoked"])
        yield replay(shown)[row], {place for place, *_ in part["committed"]} - revoked, revoked


@pytest.mark.parametrize("name", TRACES)
def test_at_every_pass_the_page_is_the_replay(opened, traced, tokenizer, name):
    lines, answers = traced(*TRACES[name])
    for row, wanted in enumerate(answers):
        tab, given = opened(lines, f"#row={row + 1}"), lines[0]["rows"][row]
        for number, (tokens, committed, revoked) in enumerate(steps(lines, row)):
            if number:
                tab.press("ArrowRight")
            shown = cells(tab)
            where = {
                state: {n for n, (names, _) in enumerate(shown) if state in names} for state in (*STATES, "dropped")
            }
            masks = {n for n, token in enumerate(tokens) if token == tokenizer.mask_id}
            assert where["masked"] | where["revoked"] == masks
            assert (where["fresh"], where["revoked"]) == (committed, revoked)
            assert where["fixed"] == set(given["fixed"])
            for part in (where["dropped"], set(range(len(tokens))) - where["dropped"]):
                text = "".join(shown[n][1] for n in sorted(part))
                assert text == drawn(tokenizer, [tokens[n] for n in sorted(part)])
            assert tab.text("#status").startswith(f"pass {number} of {tab.evaluate('find(`pass`).max')}, ")
            assert int(tab.evaluate("find('pass').value")) == number
        assert tab.evaluate("find('on').disabled") and answer_on(tab) == wanted


def test_a_link_opens_a_row_at_a_pass(opened, traced):
    lines, answers = traced(*TRACES["block"])
    tab = opened(lines, "#row=2&pass=last")
    assert (tab.evaluate("find('row').value"), answer_on(tab)) == ("1", answers[1])
    assert opened(lines, "#pass=3").evaluate("find('pass').value") == "3"


def test_the_slider_the_buttons_and_the_row_chooser_work(opened, traced):
    lines, answers = traced(*TRACES["block"])
    tab = opened(lines)
    set_to = "(e, v, kind) => { e.value = v; e.dispatchEvent(new Event(kind, { bubbles: true })); }"
    tab.evaluate(f"({set_to})(find('pass'), 2, 'input')")
    assert tab.text("#status").startswith("pass 2 of")
    tab.evaluate("find('on').click()")
    assert tab.text("#status").startswith("pass 3 of")
    tab.evaluate("find('back').click()")
    assert tab.text("#status").startswith("pass 2 of")
    tab.evaluate(f"({set_to})(find('row'), 2, 'change')")
    assert tab.text("#prompt") == "x"
    tab.press("End")
    assert answer_on(tab) == answers[2]


def test_play_goes_to_the_end_by_itself_and_pauses_on_the_way(opened, traced):
    tab = opened(traced(*TRACES["autoregressive"])[0])
    tab.evaluate("find('speed').value = '30'")
    tab.press(" ", " ")
    assert tab.text("#play") == "Pause"
    tab.press("ArrowRight")
    assert tab.text("#play") == "Play"
    tab.evaluate("find('play').click()")
    until = time.monotonic() + 10
    while tab.text("#play") == "Pause" and time.monotonic() < until:
        time.sleep(0.05)
    assert tab.text("#status").startswith("pass 20 of 20, ")


def test_what_it_cost_is_the_ledgers(opened, traced):
    lines, _ = traced(*TRACES["block"])
    ledger = lines[-1]["rows"][0]["ledger"]
    cost = opened(lines, "#pass=last").text("#cost")
    assert f"{ledger['kept']} token" in cost and f"in {ledger['total_passes']} forward pass" in cost
    assert f"{ledger['passes']['prefill']} prefill, {ledger['passes']['denoise']} denoise" in cost
    assert cost.endswith(f": {ledger['tokens_per_forward']:.2f} tokens per forward")


def test_a_token_that_is_pointed_at_or_tapped_tells_its_confidence(opened, tokenizer):
    tab = opened(spelled(tokenizer, '{"born":1815}', logit=7.0), "#pass=1")
    script = "(({ x, y, width, height }) => ({ x: x + width / 2, y: y + height / 2 }))"
    place = tab.evaluate(f"{script}(document.querySelectorAll('#response span')[3].getClientRects()[0])")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", **place)
    told = tab.text("#token")
    sure = math.exp(7) / (math.exp(7) + tokenizer.vocab_size - 2)  # all others, without the mask token, have logit 0
    assert re.fullmatch(rf'"\\"" confidence {sure:.4f}, pass 1, position 3', told)
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert tab.text("#token") == "Tap a token for its confidence."
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert tab.text("#token") == told


def test_what_stands_behind_the_end_of_an_open_gap_is_no_part_of_the_answer(opened, tokenizer):
    a, b, colon, comma = (tokenizer.encode(character)[0] for character in "{}:,")
    wanted = torch.tensor([0, a, b, tokenizer.end_id, b, colon, comma, tokenizer.end_id, b])
    logits_LV = torch.nn.functional.one_hot(wanted, tokenizer.vocab_size) * 30.0
    mask = tokenizer.mask_id
    request = Request("p", [tokenizer.begin_id], [a, mask, mask, mask, colon, *[mask] * 3], open_gaps=((1, 4),))
    writer = TraceWriter(tokenizer, {})
    config = DenoiseConfig(trace=True, max_denoising_steps=1)
    (text,) = decoded(writer, lambda tokens_BL: logits_LV[None], [request], config)
    tab = opened(writer.lines, "#pass=last")
    assert answer_on(tab) == text == "{}:,"
    assert [n for n, (names, _) in enumerate(cells(tab)) if "dropped" in names] == [3, 7]


def test_markup_in_any_text_stays_text(opened, tokenizer):
    tab = opened(spelled(tokenizer, NASTY, prompt=NASTY), "#pass=last")
    assert answer_on(tab) == tab.text("#prompt") == NASTY
    assert tab.evaluate("document.title").endswith("</script><!-- &amp; \\u003c")
    assert tab.evaluate("[document.scripts.length, document.querySelectorAll('#response b, #prompt b').length]") == [
        2,
        0,
    ]
    assert not tab.events("Page.javascriptDialogOpening") and not tab.events("Runtime.exceptionThrown")


def test_control_characters_and_line_ends_are_kept(opened, tokenizer):
    text = 'a\r\n\n\t"b"\u202eé中\x1b[0m\u2028{{trace}} $&'
    assert answer_on(opened(spelled(tokenizer, text), "#pass=last")) == text


ATTEMPTS = """(base) => {
  const add = (tag, set) => document.body.append(Object.assign(document.createElement(tag), set));
  const tries = [
    () => fetch(base + "fetch").catch(() => {}),
    () => add("img", { src: base + "image" }),
    () => add("link", { rel: "stylesheet", href: base + "sheet" }),
    () => add("iframe", { src: base + "frame" }),
    () => add("script", { src: base + "script" }),
    () => navigator.sendBeacon(base + "beacon"),
    () => new EventSource(base + "events"),
    () => new WebSocket(base.replace("http", "ws") + "socket"),
    () => { document.body.style.backgroundImage = `url(${base}background)`; },
  ];
  for (const attempt of tries) try { attempt(); } catch {}
  return new Promise((done) => setTimeout(done, 700));
}"""


@pytest.fixture
def server():
    """A server on this machine: its address and the paths that it was asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        do_POST = do_OPTIONS = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    server.server_close()


def test_nothing_is_fetched_and_nothing_could_be(opened, tokenizer, server, monkeypatch):
    address, asked = server
    lines = spelled(tokenizer, NASTY)
    tab = opened(lines, "#pass=last")
    assert {re.sub("#.*", "", sent["request"]["url"]) for sent in tab.events("Network.requestWillBeSent")} == {
        tab.evaluate("location.href.split('#')[0]")
    }
    tab.evaluate(f"({ATTEMPTS})({address!r})")
    assert asked == []
    assert tab.evaluate(
        "(() => { try { document.body.innerHTML = 'x'; } catch (error) { return error.name; } })()"
    ) == ("TypeError")
    monkeypatch.setattr("sample.page.policy", lambda _: "")  # without its policy it could: the test can see
    opened(lines).evaluate(f"({ATTEMPTS})({address!r})")
    assert len(set(asked)) > 5


def test_the_states_differ_by_more_than_colour(opened, tokenizer):
    script = """(states) => states.map((state) => {
      const span = document.querySelector(`#legend .${state}`);
      const looks = [getComputedStyle(span), getComputedStyle(span, "::before")];
      return JSON.stringify(looks.map((look) => [look.textDecorationLine, look.textDecorationStyle,
        look.backgroundImage !== "none", look.boxShadow !== "none", look.borderTopStyle]));
    })"""
    assert len(set(opened(spelled(tokenizer, "x")).evaluate(f"({script})({list(STATES)})"))) == len(STATES)


def test_dark_light_and_still_as_the_reader_prefers(opened, tokenizer):
    lines = spelled(tokenizer, "x")
    look = "(({ backgroundColor, color }) => [backgroundColor, color])(getComputedStyle(document.body))"
    channels = {}
    for scheme in ("light", "dark"):
        tab = opened(lines, color_scheme=scheme, reduced_motion="reduce")
        channels[scheme] = [int(re.findall(r"\d+", colour)[0]) for colour in tab.evaluate(look)]
        assert tab.evaluate("getComputedStyle(document.querySelector('#response span')).transitionProperty") == "none"
    assert channels["light"][0] > 200 > 60 > channels["light"][1]
    assert channels["dark"][0] < 60 < 200 < channels["dark"][1]


def test_on_a_telephone_it_wraps_and_can_be_touched(opened, traced):
    lines, _ = traced(*TRACES["template"])
    tab = opened(lines, "#pass=2")
    tab.resize(390, 844, deviceScaleFactor=2, mobile=True)
    assert tab.evaluate("document.documentElement.scrollWidth") == tab.evaluate("innerWidth") == 390
    heights = "[...document.querySelectorAll('button, input, select, summary')].map((e) => e.offsetHeight)"
    assert min(height for height in tab.evaluate(heights) if height) >= 44
    sizes = "[...document.querySelectorAll('body :not(input)')].map((e) => parseFloat(getComputedStyle(e).fontSize))"
    assert min(tab.evaluate(sizes)) >= 16


def test_the_page_is_one_file_without_addresses_and_its_data_cannot_leave_their_element(tokenizer):
    text = page(spelled(tokenizer, NASTY))
    data = re.search(r'<script id="trace" type="application/json">(.*?)</script>', text, re.DOTALL)[1]
    assert not set("<>&") & set(data)
    assert json.loads(data)[0]["rows"][0]["prompt"] == "p"
    assert not re.search(r"https?:|src=|@import|url\(", text)
    assert "default-src 'none'" in text and "unsafe" not in text
    assert text.count("<script") == text.count("</script>") == 2


def test_a_page_that_cannot_be_written_is_one_line(tokenizer, tmp_path):
    with pytest.raises(UserError, match="is a folder"):
        write_page(tmp_path, spelled(tokenizer, "x"))
