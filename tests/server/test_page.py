"""The page at `/`, as it is sent: its policy, that nothing of it lies elsewhere, and what it asks for."""

import base64
import hashlib
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from branchpoint.runtime.serving.gateway import State
from branchpoint.runtime.serving.page import SCRIPTS
from tests.runtime.serving_site import open_site


class Parts(HTMLParser):
    """The page's ids, attributes, and the texts of its style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.inside = {"style": "", "script": ""}
        self._tag = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in self.inside:
            self.inside[self._tag] += data


async def sent() -> tuple[dict[str, str], Parts]:
    async with open_site() as site:
        answer = await site.http.get("/")
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
        assert (await site.http.head("/")).status_code == 200
        return dict(answer.headers), Parts(answer.text)


async def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    headers, parts = await sent()
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(parts.inside[kind].encode()).digest()).decode()
        assert policy.pop(f"{kind}-src") == f"'sha256-{digest}'"
    own = {"connect-src": "'self'", "img-src": "data:"}
    assert policy == own | dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


async def test_everything_of_the_page_is_in_it() -> None:
    _, parts = await sent()
    links = [value for _, name, value in parts.attributes if name in ("src", "href", "action", "srcset", "poster")]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert not [name for _, name, _ in parts.attributes if name.startswith("on") or name == "style"], "the policy forbids these"
    assert "url(" not in parts.inside["style"] and "@import" not in parts.inside["style"]
    spaces = re.findall(r"https?://[^\"']*", parts.inside["script"])
    assert set(spaces) == {"http://www.w3.org/2000/svg"}, "a name, not an address"


async def test_what_users_and_models_say_never_becomes_markup() -> None:
    _, parts = await sent()
    ways = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "localStorage", "cookie")
    assert not [way for way in ways if way in parts.inside["script"]]


async def test_the_script_finds_every_element_that_it_looks_for_and_labels_name_their_fields() -> None:
    _, parts = await sent()
    assert len(parts.ids) == len(set(parts.ids))
    wanted = set(re.findall(r'byId\("([^"]+)"\)', parts.inside["script"])) | {"prompt", "form", "rule", "most"}
    assert wanted <= set(parts.ids) and len(wanted) > 20
    pointed = [v for _, name, v in parts.attributes if name in ("for", "aria-labelledby")]
    pointed += [value[1:] for tag, name, value in parts.attributes if tag == "a" and name == "href"]
    assert set(pointed) <= set(parts.ids)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to read JavaScript")
async def test_the_script_is_one_that_browsers_can_read() -> None:
    _, parts = await sent()
    done = subprocess.run(["node", "--check", "-"], input=parts.inside["script"], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(SCRIPTS) == len(set(SCRIPTS))


async def test_the_page_is_there_while_the_server_loads_and_drains_and_asks_for_no_key() -> None:
    async with open_site(loaded=False, api_keys=("k",)) as site:
        assert (await site.http.get("/")).status_code == 200
        assert (await site.http.get("/health")).json() == {"status": "loading"}
    async with open_site(api_keys=("k",)) as site:
        site.gateway.state = State.DRAINING
        assert (await site.http.get("/")).status_code == 200
        answer = await site.http.get("/branchpoint/requests", headers={"x-api-key": "k"})
        assert answer.json() == {"object": "list", "total": 0, "data": []}
        assert (await site.http.get("/branchpoint/requests")).status_code == 401
