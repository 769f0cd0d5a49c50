"""The page in headless Chromium, on the real application around a fake engine. `make browser` installs what this needs."""

import re
import shutil
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from branchpoint.radix.node import Node
from branchpoint.runtime.serving.gateway import State
from tests.lang.http_site import Site

playwright = pytest.importorskip("playwright.sync_api", reason="the page's test needs playwright: `make browser`")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the page's test needs Chromium: `make browser`")

SAID = '{"name":"<img src=x onerror=alert(1)>","born":1815}'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: Any, loaded: bool = True, names: tuple[str, ...] = ("fake",), **look: Any) -> Iterator[tuple[Site, Any]]:
    """The page of a server with the key `secret`; what it complains of, or asks of other places, fails the test."""
    site = Site(context=512, names=names)
    context = browser.new_context(**look)
    page, wrong = context.new_page(), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if "Content Security" in message.text else None)
    page.on("request", lambda request: None if request.url.startswith((site.url, "data:")) else wrong.append(request.url))
    page.set_default_timeout(20_000)
    try:
        if not loaded:
            site.gateway.state = State.LOADING
        page.goto(site.url)
        yield site, page
        assert not wrong
    finally:
        context.close()
        site.close()


def sign_in(page: Any) -> None:
    page.get_by_label("API key").last.fill("secret")
    page.get_by_role("button", name="Use it").click()
    page.locator("#name", has_text="fake").or_(page.locator("#name", has_text="context")).first.wait_for()


def see(locator: Any, text: str) -> None:
    playwright.expect(locator).to_contain_text(text, timeout=20_000)


def test_a_key_is_asked_for_kept_in_the_tab_and_a_wrong_one_refused(browser: Any) -> None:
    with opened(browser) as (_, page):
        dialog = page.get_by_role("dialog")
        see(dialog, "This server asks for a key")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        see(dialog, "doesn't know this key")
        sign_in(page)
        assert page.context.storage_state()["origins"] == [] and page.context.cookies() == []
        page.reload()
        see(page.locator("#name"), "512 tokens of context")
        assert not dialog.is_visible()


def test_a_run_streams_marks_what_was_forced_and_says_whether_it_is_json(browser: Any) -> None:
    with opened(browser) as (site, page):
        sign_in(page)
        site.engine.say = SAID
        site.engine.forced = 7
        page.get_by_label("Prompt", exact=True).fill("Who?")
        page.keyboard.press("Control+Enter")
        see(page.locator("#ran"), "Done in")
        assert page.locator("#output").inner_text() == SAID, "what a model says is shown as text"
        assert page.locator("#output .forced").all_inner_texts() == ["{", '"', "n", "a", "m", "e", '"']
        assert page.locator("#output img").count() == 0
        see(page.locator("#valid"), "valid JSON")
        see(page.locator("#output-mix"), "7 forced by the grammar")
        see(page.locator("#prompt-mix"), "from cache")
        call = site.engine.calls[-1]
        assert call.constraint is not None and call.sampling.temperature == 0


def test_an_output_that_was_cut_and_a_refusal_are_told(browser: Any) -> None:
    with opened(browser) as (site, page):
        sign_in(page)
        site.engine.say = SAID
        page.get_by_label("At most").fill("9")
        page.get_by_role("button", name="Run").click()
        see(page.locator("#valid"), "cut")
        page.get_by_role("textbox", name="Schema").fill("{")
        page.get_by_role("button", name="Run").click()
        see(page.locator("#output"), "The schema isn't JSON")
        page.get_by_role("combobox", name="Output").select_option("text")
        page.get_by_label("Prompt", exact=True).fill("x" * 600)
        page.get_by_role("button", name="Run").click()
        see(page.locator("#output"), "maximum context length")


def test_live_requests_are_listed_and_can_be_ended(browser: Any) -> None:
    with opened(browser) as (site, page):
        sign_in(page)
        site.engine.hold = True
        page.get_by_role("button", name="Run").click()
        row = page.locator("#requests tr")
        see(row, "/generate")
        see(row, "waiting")
        row.get_by_role("button").click()
        see(page.locator("#output"), "aborted")
        playwright.expect(row).to_have_count(0)


def test_the_tree_shows_prefixes_as_text_with_their_hits(browser: Any) -> None:
    root = Node(None, 0, array("i", list(b"<b>You are</b>")), [0])
    child = Node(root, 14, array("i", list(b" helpful\n")), [1])
    root.hits, child.hits = 5, 1
    with opened(browser) as (site, page):
        site.engine.cached = [("", root), ("", child)]
        sign_in(page)
        tree = page.locator("#tree")
        see(tree, "<b>You are</b>")
        see(tree, "5 hits")
        see(tree, " helpful⏎")
        assert tree.locator("b").count() == 0
        tree.locator("summary").press("Enter")
        playwright.expect(tree.get_by_text("helpful")).to_be_hidden()


def test_figures_follow_the_server_and_its_state(browser: Any) -> None:
    with opened(browser, loaded=False) as (site, page):
        see(page.locator("#state"), "Loading")
        site.gateway.state = State.READY
        see(page.locator("#state"), "Ready")
        sign_in(page)
        see(page.locator("#figures"), "Prompts from cache")
        assert re.fullmatch(r"Tokens per second: generated \S+, .*", page.locator("#plots svg").first.get_attribute("aria-label"))
        site.gateway.state = State.DRAINING
        see(page.locator("#state"), "Ending")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Any, scheme: str) -> None:
    with opened(browser, color_scheme=scheme, viewport={"width": 360, "height": 740}) as (_, page):
        sign_in(page)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")
        inside = "all => all.every((one) => one.getBoundingClientRect().right <= innerWidth)"
        assert page.locator("main section").evaluate_all(inside)


def test_of_several_models_one_is_chosen(browser: Any) -> None:
    with opened(browser, names=("fake", "second")) as (site, page):
        other = site.engines[1]
        other.say = "other"
        sign_in(page)
        page.get_by_role("combobox", name="Model").select_option("second")
        page.get_by_role("combobox", name="Output").select_option("text")
        page.get_by_role("button", name="Run").click()
        see(page.locator("#output"), "other")
        assert other.calls and not site.engine.calls
