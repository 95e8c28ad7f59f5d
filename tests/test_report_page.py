"""`triport report`: the page in headless Chromium: filters, points, light and dark, narrow and wide, and nothing that leaves it."""

import json

import pytest
from results_files import made, nasty, written
from triport.tools.__main__ import main
from triport.tools.reporting import colours


@pytest.fixture
def opened(browser, tmp_path):
    """open(width, dark, **files): the page of results files in the browser."""
    def open_(width=1440, dark=False, part="", **files):
        paths = written(tmp_path, **files) if files else sorted(tmp_path.glob("*.json"))
        assert main(["report", *map(str, paths), "-o", str(tmp_path / "report.html")]) == 0
        view(width, dark)
        browser.get("about:blank")
        browser.get_log("performance")
        browser.get((tmp_path / "report.html").as_uri() + part)
        return browser

    def view(width, dark):
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    yield open_
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


POINTS = "return document.querySelectorAll('#%s [role=button]').length"
#: what sticks out of the page, but for what scrolls in a box of its own
OUTSIDE = """const wide = document.documentElement.clientWidth;
return [document.documentElement.scrollWidth > wide, ...[...document.querySelectorAll('body *')].filter(e => !e.closest('#rows') && !e.closest('svg')
  && e.getBoundingClientRect().width && (e.getBoundingClientRect().right > wide + 1 || e.getBoundingClientRect().left < -1))
  .map(e => e.outerHTML.slice(0, 99))]"""


def chip(browser, key, value):
    browser.execute_script("[...document.querySelectorAll(`input[name=${arguments[0]}]`)].find(e => e.value === arguments[1]).click()", key, value)


@pytest.mark.parametrize("width", [400, 1440])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_leaves_the_page_or_sticks_out(opened, width, dark):
    browser = opened(width, dark, laptop=made(), board=made(seed=1), strange=nasty())
    assert browser.execute_script(OUTSIDE) == [False]
    assert all(browser.execute_script(POINTS % figure) for figure in ("time", "speed", "roof", "cpu", "first"))
    assert not browser.execute_script("return [...document.querySelectorAll('svg text')].filter(e => { const t = e.getBoundingClientRect(), "
                                      "s = e.ownerSVGElement.getBoundingClientRect(); return e.textContent.length < 30 "
                                      "&& (t.left < s.left - 2 || t.right > s.right + 2); }).map(e => e.textContent)")
    asked = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    urls = {m["params"]["request"]["url"].partition("#")[0] for m in asked if m["method"] == "Network.requestWillBeSent"}
    assert {u for u in urls if not u.startswith("data:")} == {browser.current_url.partition("#")[0]}
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)")


def test_the_toggle_has_the_last_word(opened):
    browser = opened(dark=True, laptop=made())
    grounds = [browser.execute_script("const t = document.getElementById('theme'); t.value = arguments[0]; t.dispatchEvent(new Event('change'));"
                                      "return getComputedStyle(document.body).backgroundColor", value) for value in ("light", "dark", "")]
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 23, 26)", "rgb(21, 23, 26)"]


def test_filters_change_what_is_drawn(opened):
    """Points, bars and table rows; the controls and the address say what is chosen, and a page opened there shows the same."""
    browser = opened(laptop=made(), board=made(seed=1))
    count = lambda: [browser.execute_script(POINTS % f) for f in ("time", "speed", "roof", "cpu")] + [  # noqa: E731
        browser.execute_script("return document.querySelectorAll('%s').length" % s) for s in ("#speed .bar", "#rows tbody tr", "#time .panel")]
    assert count() == [72, 48, 72, 72, 16, 72, 4]
    chip(browser, "backend", "torch-compile")
    assert count() == [48, 24, 48, 48, 8, 48, 4]
    chip(browser, "op", "matmul")  # one op is left: a bar a case
    assert count() == [24, 12, 24, 24, 12, 24, 2]
    chip(browser, "machine", "board")
    chip(browser, "dtype", "bf16")
    assert count() == [6, 3, 6, 6, 3, 6, 1]
    assert "6 of 72 rows" in browser.find_element("id", "count").text
    part = browser.execute_script("return location.hash")
    browser = opened(part=part)
    assert count() == [6, 3, 6, 6, 3, 6, 1]
    off = browser.execute_script("return [...document.querySelectorAll('#filters input:not(:checked)')].map(e => e.value)")
    assert off == ["matmul", "bf16", "torch-compile", "board"]
    browser.find_element("id", "reset").click()
    assert count() == [72, 48, 72, 72, 16, 72, 4] and not browser.execute_script("return document.querySelector('#filters input:not(:checked)')")
    browser.find_element("css selector", "button[aria-label='Backend: none']").click()
    assert count() == [0] * 7 and "0 of 72 rows" in browser.find_element("id", "count").text


def test_a_point_says_what_it_is(opened, tmp_path):
    """Under the pointer, by keyboard, and kept by a click, with links to machine code and trace; Escape closes it."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys
    for name in ("code.html", "trace.html"):
        (tmp_path / name).write_text("")
    data = made()
    ours = [r for r in data["rows"] if r["backend"] == "triton-cpu" and r["op"] == "softmax" and r["dtype"] == "fp32"]
    data["rows"] = [data["rows"][0]] + ours
    for r in ours:
        r["artefacts"] = {"asm": "code.html", "verdict": "VECTOR 100%", "trace": "trace.html", "case": "64x64"}
    browser = opened(laptop=data)
    box = browser.find_element("id", "tip")
    point = browser.find_element("css selector", "#time [role=button][aria-label*='1024x1024'][aria-label*='triton-cpu']")
    assert not box.is_displayed()
    ActionChains(browser).move_to_element(point).perform()
    text = box.text
    assert box.is_displayed() and all(x in text for x in ("softmax 1024x1024", "fp32", "triton-cpu", "laptop", "wall", "roof", "40%", "cold 200 ms"))
    assert point.get_attribute("fill") == colours.COLOURS["triton-cpu"]
    ActionChains(browser).click(point).perform()
    links = {a.text: a.get_attribute("href") for a in box.find_elements("tag name", "a")}
    assert links == {"VECTOR 100%": (tmp_path / "code.html").as_uri(), "open": (tmp_path / "trace.html").as_uri()} and "of case 64x64" in box.text
    ActionChains(browser).move_to_element(browser.find_element("tag name", "h1")).perform()
    assert box.is_displayed()
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not box.is_displayed() and browser.switch_to.active_element == point
    ActionChains(browser).send_keys(Keys.HOME).perform()
    first = browser.switch_to.active_element
    assert box.is_displayed() and first != point and "softmax 64x64" in box.text
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert box.find_elements("css selector", "button") and browser.switch_to.active_element.text == "Close"
    stops = browser.execute_script("return [...document.querySelectorAll('.panel > svg')].map(s => s.querySelectorAll('[tabindex=\"0\"]').length)")
    assert len(stops) == 5 and set(stops) == {1}  # each panel is one stop of Tab


def test_the_table_sorts_and_has_failures_first(opened):
    data = made()
    data["rows"][7] = {k: data["rows"][7][k] for k in ("op", "case", "dtype", "backend")} | {"status": "failed", "reason": "RuntimeError: no"}
    browser = opened(laptop=data)
    column = lambda name: browser.execute_script(  # noqa: E731
        "const n = [...document.querySelectorAll('#rows th')].findIndex(e => e.textContent.startsWith(arguments[0]));"
        "return [...document.querySelectorAll('#rows tbody tr')].map(e => e.children[n].textContent)", name)
    assert column("time")[0] == "FAILED"
    by = "[...document.querySelectorAll('#rows th button')].find(e => e.textContent.startsWith('vs torch')).click()"
    for down in (False, True):
        browser.execute_script(by)
        values = [float(x.rstrip("x")) for x in column("vs torch")[1:]]
        assert values == sorted(values, reverse=down) and column("time")[0] == "FAILED"
    assert browser.execute_script("return document.querySelectorAll('#rows [aria-sort=descending]').length") == 1
