"""The page in headless Chromium: where it opens, what belongs together, keys, sizes, contrast. It asks for nothing else."""

import base64
import gzip
import itertools
import json

import pytest
from triport.backends.base import Error
from triport.ops import registry
from triport.tools.__main__ import main
from triport.tools.inspector import code, launches, page, report, targets

WIDTHS = (400, 760, 1024, 1440, 2560)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """pages(what, target): the path of a page, made once."""
    folder, made = tmp_path_factory.mktemp("pages"), {}

    def of(what, target, *more):
        key = (what, target, *more)
        if key not in made:
            made[key] = folder / f"{len(made)}.html"
            assert main(["asm", what, "--target", target, *more, "--html", str(made[key])]) == 0
        return made[key]
    return of


@pytest.fixture
def opened(browser):
    """opened(path, width, height, dark, part): the browser on a page."""
    def open_(path, width=1440, height=900, dark=False, part=""):
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        browser.get("about:blank")
        browser.get_log("performance")
        browser.get(path.as_uri() + part)
        browser.execute_async_script("const done = arguments[0], look = () => document.documentElement.dataset.ready ? done() : setTimeout(look, 5); look();")
        return browser

    yield open_
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def press(browser, *keys):
    for key in keys:
        browser.execute_script("(document.activeElement || document.body).dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true, cancelable: true}))", key)


def rows(browser, css):
    return browser.execute_script("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", css)


def in_view(browser, css):
    """Is the first element of a selector inside its pane and the window?"""
    return browser.execute_script("""const e = document.querySelector(arguments[0]);
        if (!e) return null;
        const r = e.getBoundingClientRect(), p = e.closest('pre').getBoundingClientRect();
        return r.top >= p.top - 1 && r.bottom <= p.bottom + 1 && r.top >= 0 && r.bottom <= innerHeight && r.left < innerWidth;""", css)


def held(text):
    """The data inside a page."""
    packed = text.partition('id="data">')[2].partition("<")[0]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


# --- where it opens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what, target", [("softmax", "spacemit-x60"), ("matmul", "native"), ("softmax", "sm_90"), ("softmax", "gfx942")])
def test_it_opens_at_the_hot_loop(opened, pages, what, target):
    browser = opened(pages(what, target))
    assert in_view(browser, ".pane.asm .fold.hot") or in_view(browser, ".pane.asm .row.here")
    current = rows(browser, "#table tr.current td:first-child")
    hottest = rows(browser, "#table tbody tr:first-child td:first-child")
    assert current == hottest and len(current) == 1
    for pane in rows(browser, "[aria-pressed=true]"):
        assert pane
    kinds = browser.execute_script("return [...document.querySelectorAll('#panes .pane')].map(e => e.classList[1])")
    assert "source" in kinds and "asm" in kinds
    for kind in kinds:
        visible = browser.execute_script("""const p = document.querySelector(`.pane.${arguments[0]} pre`), box = p.getBoundingClientRect();
            return [...p.querySelectorAll('.here')].some(e => { const r = e.getBoundingClientRect(); return r.top >= box.top && r.bottom <= box.bottom + 1; });""", kind)
        assert visible, kind


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_leaves_the_page_or_sticks_out(opened, pages, width):
    for what, target in (("softmax", "spacemit-x60"), ("softmax", "sm_90")):
        browser = opened(pages(what, target), width)
        outside = browser.execute_script("""const wide = document.documentElement.clientWidth;
            return [document.documentElement.scrollWidth > wide, ...[...document.querySelectorAll('body *')].filter(e => !e.closest('pre') && !e.closest('table')
              && e.getBoundingClientRect().width && (e.getBoundingClientRect().right > wide + 1 || e.getBoundingClientRect().left < -1)).map(e => e.outerHTML.slice(0, 90))]""")
        assert outside == [False]
        asm = browser.execute_script("const r = document.querySelector('.pane.asm').getBoundingClientRect(); return [r.left, r.right, r.width]")
        assert asm[0] >= 0 and asm[1] <= width + 1 and asm[2] >= min(width - 60, 300)
        if width >= 900:
            assert browser.execute_script("return document.documentElement.scrollHeight <= innerHeight")
    asked = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    urls = {m["params"]["request"]["url"].partition("#")[0] for m in asked if m["method"] == "Network.requestWillBeSent"}
    assert {u for u in urls if not u.startswith(("data:", "about:"))} == {browser.current_url.partition("#")[0]}


@pytest.mark.parametrize("width", [400, 1440])
def test_lines_are_18_pixels_apart(opened, pages, width):
    browser = opened(pages("softmax", "spacemit-x60"), width)
    press(browser, "3", "4")
    pitches = browser.execute_script("""return [...document.querySelectorAll('.pane pre')].map(p => {
        const tops = [...p.querySelectorAll('.row')].map(e => e.getBoundingClientRect().top);
        return [tops.length, [...new Set(tops.slice(1).map((t, n) => Math.round(100 * (t - tops[n])) / 100))]]; });""")
    assert len(pitches) >= 4 and all(count > 5 and found == [18] for count, found in pitches), pitches


def test_a_long_text_opens_quickly_and_in_part(opened, tmp_path):
    """6,000 lines of assembly: only those in view are in the document, and no fold is lost."""
    body = "".join(f".L{n}:\n" + "\tvmovups (%rdi,%rax,4), %zmm0\n\tvaddps (%rsi,%rax,4), %zmm0, %zmm0\n\tvmovups %zmm0, (%rdx,%rax,4)\n" * 6
                   + f"\taddq $16, %rax\n\tcmpq %rcx, %rax\n\tjne .L{n}\n" for n in range(300))
    source = tmp_path / "long.s"
    source.write_text("\t.text\n\t.globl long\n\t.type long,@function\nlong:\n" + body + "\tretq\n")
    path = tmp_path / "long.html"
    assert main(["asm", str(source), "--html", str(path)]) == 0
    assert path.stat().st_size < 400_000
    browser = opened(path)
    count = lambda: browser.execute_script("return document.querySelectorAll('.pane.asm .row').length")  # noqa: E731
    assert 0 < count() < 600 and in_view(browser, ".pane.asm .fold.hot")
    browser.execute_script("const p = document.querySelector('.pane.asm pre'); p.scrollTop = p.scrollHeight; p.dispatchEvent(new Event('scroll'))")
    assert count() < 600 and rows(browser, ".pane.asm .row")[-1].strip() == "retq"
    state = browser.execute_script("return [app.panes[0].shown.length, app.panes[0].sheet.getBoundingClientRect().height]")
    assert state[1] == 18 * state[0] and state[0] > 6_000


# --- what belongs together -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["spacemit-x60", "native", "sm_90", "gfx942"])
def test_a_click_keeps_what_the_pointer_lights(opened, pages, target):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    browser = opened(pages("softmax", target), 2560, 1300)
    source = next(e for e in browser.find_elements(By.CSS_SELECTOR, ".pane.source [data-k]") if "tl.exp(wide" in e.text)
    key = source.get_attribute("data-k")
    ActionChains(browser).move_to_element(source).perform()
    lit = browser.find_elements(By.CSS_SELECTOR, ".pane.asm .lit")
    assert lit and all(e.get_attribute("data-k") == key for e in lit)
    source.click()
    shown = browser.execute_script("return [...document.querySelectorAll('#panes .pane')].map(e => e.classList[1])")
    assert len(shown) >= 4 and {"source", "asm"} < set(shown)
    for kind in shown:
        assert browser.find_elements(By.CSS_SELECTOR, f".pane.{kind} .pin"), kind
        assert browser.execute_script("""const p = document.querySelector(`.pane.${arguments[0]} pre`), box = p.getBoundingClientRect();
            return [...p.querySelectorAll('.pin')].some(e => { const r = e.getBoundingClientRect(); return r.top >= box.top - 1 && r.bottom <= box.bottom + 1; });""", kind), kind
    browser.find_elements(By.CSS_SELECTOR, ".pane.source [data-k].pin")[0].click()
    assert not browser.find_elements(By.CSS_SELECTOR, ".pin")
    # and the other way round
    instruction = next(e for e in browser.find_elements(By.CSS_SELECTOR, ".pane.asm .row[data-k]") if e.get_attribute("data-k") == key)
    browser.execute_script("arguments[0].click()", instruction)
    assert "tl.exp(wide" in browser.find_element(By.CSS_SELECTOR, ".pane.source .pin").text and in_view(browser, ".pane.source .pin")


def test_the_plan_is_linked(opened, pages):
    """A line of the plan by its `line N`, and by the values @N that it names."""
    browser = opened(pages("softmax", "spacemit-x60"))
    plan = browser.execute_script("""const p = app.panes.find(p => p.kind === 'plan').data;
        return p.lines.map((line, n) => [line, p.keys[n].map(k => app.kernel.places[k])])""")
    line = next(keys for text, keys in plan if "reduce by maxnumf of x_ptr[]" in text)
    assert [x.partition(":")[0] for x in line] == ["softmax.py"] * 2 and len(set(line)) == 2
    inner = next(keys for text, keys in plan if text.startswith("    keeps"))
    assert inner and plan[0][1] == []


def test_tooltips_say_what_an_instruction_does(opened, pages):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait
    browser = opened(pages("matmul", "x86-64-v4"))
    row = next(e for e in browser.find_elements(By.CSS_SELECTOR, ".pane.asm .row.here") if "vfmadd" in e.text)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", row)
    tip, title = browser.find_element(By.ID, "tip"), browser.find_element(By.TAG_NAME, "h1")

    def shown(_):
        ActionChains(browser).move_to_element(title).move_to_element(row).perform()  # again: a busy browser may scroll behind the pointer's last move
        return tip.is_displayed()

    WebDriverWait(browser, 60).until(shown)
    for words in ("multiply and add", "fma:", "vector", "f32", "512 bit, 16 elements", "product.py:", "of the estimated work"):
        assert words in tip.text, (words, tip.text)
    ActionChains(browser).move_to_element(title).perform()
    assert not tip.is_displayed()


def test_arithmetic_with_an_operand_in_memory_is_arithmetic():
    kinds = {"kind": "fma", "unit": "vector", "element": "f32", "load_bits": 512, "store_bits": 0, "spill": False}
    from triport.tools.inspector.page import data
    assert data.style(kinds) == "vfp"
    assert data.style({**kinds, "kind": "arithmetic", "element": "i32"}) == "vint"
    assert data.style({**kinds, "kind": "load"}) == "vmem"
    assert data.style({**kinds, "spill": True}) == "bad" and data.style({**kinds, "kind": "unknown", "unit": "scalar"}) == "unknown"


# --- keys, search, the address ---------------------------------------------------------------------------------------


def test_keys(opened, pages):
    browser = opened(pages("softmax", "spacemit-x60"))
    cursor = lambda: rows(browser, ".row.cursor")  # noqa: E731
    press(browser, "j")
    first = cursor()
    press(browser, "j", "j", "k")
    second = cursor()
    assert len(first) == len(second) == 1 and first != second and browser.find_element("id", "detail").text.split()[0] in second[0]
    assert rows(browser, ".pane.source .lit") and in_view(browser, ".row.cursor")
    at = lambda: rows(browser, "#table tr.current td:first-child")[0]  # noqa: E731
    start = at()
    press(browser, "n")
    assert at() != start and rows(browser, ".fold.hot") and in_view(browser, ".row.cursor")
    press(browser, "p")
    assert at() == start
    press(browser, "j", "Enter")
    assert rows(browser, ".pin") and "line=softmax.py" in browser.current_url
    press(browser, "Escape")
    assert not rows(browser, ".pin") and "line=" not in browser.current_url
    panes = lambda: len(rows(browser, "#panes .pane"))  # noqa: E731
    before = panes()
    press(browser, "3")
    assert panes() == before + 1 and "panes=" in browser.current_url
    for key in "12345":
        press(browser, key)
    assert panes() >= 1
    press(browser, "?")
    assert browser.find_element("id", "help").is_displayed() and "next and previous hot loop" in browser.find_element("id", "help").text
    browser.execute_script("document.getElementById('help').close()")
    press(browser, "h", "l", "o", "o", "[", "]", "x", "0")


def test_search(opened, pages):
    from selenium.webdriver.common.keys import Keys
    browser = opened(pages("softmax", "spacemit-x60"))
    press(browser, "/")
    field = browser.switch_to.active_element
    assert field.get_attribute("id") == "search"
    field.send_keys("VFMACC", Keys.ENTER)
    found = rows(browser, ".pane.asm .found")
    assert found and all("vfmacc" in x for x in found) and in_view(browser, ".row.cursor")
    assert browser.find_element("id", "found").text == f"1 of {browser.execute_script('return search.hits.length')}"
    field.send_keys(Keys.ENTER)
    assert browser.find_element("id", "found").text.startswith("2 of")
    field.send_keys(Keys.SHIFT, Keys.ENTER)
    field.clear()
    field.send_keys("no such text", Keys.NULL, Keys.ENTER)
    assert browser.find_element("id", "found").text == "not found" and not rows(browser, ".found")
    field.send_keys(Keys.ESCAPE)
    assert field.get_attribute("value") == "" and browser.find_element("id", "found").text == ""


def test_the_address_opens_what_was_shown(opened, pages):
    path = pages("softmax", "spacemit-x60")
    browser = opened(path)
    press(browser, "4", "2", "n", "j", "Enter")
    browser.execute_script("const t = document.getElementById('theme'); t.value = 'dark'; t.dispatchEvent(new Event('change'))")
    look = lambda: [rows(browser, "#panes h3 span"), rows(browser, "#table tr.current"), sorted(set(rows(browser, ".pane.source .pin"))),  # noqa: E731
                    browser.execute_script("return getComputedStyle(document.body).backgroundColor")]
    before, part = look(), browser.execute_script("return location.hash")
    browser = opened(path, part=part)
    assert look() == before and before[2] and before[3] == "rgb(21, 23, 26)" and "theme=dark" in part
    for wrong in ("#k=99&panes=nothing&loop=L999&line=x:1&theme=pink", "#%%%", "#panes="):
        assert len(rows(opened(path, part=wrong), "#panes .pane")) == 3


def test_folds_and_the_strip(opened, pages):
    from selenium.webdriver.common.action_chains import ActionChains
    browser = opened(pages("softmax", "spacemit-x60"))
    closed = browser.find_element("css selector", ".pane.asm .fold[aria-expanded=false]")
    number, before = closed.get_attribute("data-fold"), len(rows(browser, ".pane.asm .row"))
    browser.execute_script("arguments[0].click()", closed)
    assert len(rows(browser, ".pane.asm .row")) > before
    assert browser.switch_to.active_element.get_attribute("data-fold") == number
    strip = browser.find_element("css selector", ".strip")
    assert "linear-gradient" in strip.value_of_css_property("background-image")
    top = lambda: browser.execute_script("return document.querySelector('.pane.asm pre').scrollTop")  # noqa: E731
    ActionChains(browser).move_to_element_with_offset(strip, 0, -strip.size["height"] // 2 + 3).click().perform()
    low = top()
    ActionChains(browser).move_to_element_with_offset(strip, 0, strip.size["height"] // 2 - 3).click().perform()
    assert low == 0 and top() > 200


# --- colours ---------------------------------------------------------------------------------------------------------

CONTRAST = """
const seen = new Map(), canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgb = c => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
const light = c => { const f = c.slice(0, 3).map(x => x / 255).map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4); return .2126 * f[0] + .7152 * f[1] + .0722 * f[2]; };
const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; if (c[3]) return null; } return rgb('white'); };
for (const e of document.querySelectorAll('body *')) {
  if (!e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || ['SCRIPT', 'STYLE', 'OPTION'].includes(e.tagName)) continue;
  const back = ground(e), text = rgb(getComputedStyle(e).color), a = light(text), b = back && light(back);
  const ratio = back ? (Math.max(a, b) + .05) / (Math.min(a, b) + .05) : 0, name = `${e.tagName}.${e.className} in ${e.closest('.row') ? e.closest('.row').className : ''}`;
  if (!seen.has(name) || seen.get(name) > ratio) seen.set(name, ratio);
}
return [...seen];"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read(opened, pages, dark):
    """Every class of instruction and of words in lines that are plain, of the loop, lit, kept, found; tables, buttons, the help and the box."""
    browser = opened(pages("softmax", "spacemit-x60"), 1600, 1000, dark)
    styles = browser.execute_script("return LEGEND.map(x => x[0])")
    assert {"vfp", "vmem", "vint", "sfp", "smem", "matrix", "gather", "bad", "unknown", "rest"} == set(styles)
    press(browser, "3", "4", "?")
    seen = {}
    for mark in ("", "here", "lit", "pin", "found", "cursor", "lit pin", "here lit"):
        browser.execute_script("""document.querySelectorAll('#panes .row:not(.fold)').forEach((e, n) => {
            e.className = `row ${arguments[0]}`;
            if (e.closest('.asm')) e.append(...arguments[1].map(c => Object.assign(document.createElement('span'), {className: `c-${c}`, textContent: c})));
            });""", mark, styles if not mark else [])
        seen |= dict(browser.execute_script(CONTRAST))
    browser.execute_script("document.getElementById('help').close(); document.getElementById('tip').hidden = false; document.getElementById('tip').textContent = 'text'")
    seen |= dict(browser.execute_script(CONTRAST))
    assert all(any(f"c-{style} in row {mark}" in name for name in seen) for style in styles for mark in ("here", "lit", "pin", "found"))
    assert any("t-key" in n for n in seen) and any("t-rem" in n for n in seen) and any("label" in n for n in seen) and len(seen) > 80
    assert min(seen.values()) >= 4.5, sorted((ratio, name) for name, ratio in seen.items())[:8]


def test_the_switch_has_the_last_word(opened, pages):
    browser = opened(pages("softmax", "spacemit-x60"), dark=True)
    grounds = [browser.execute_script("const t = document.getElementById('theme'); t.value = arguments[0]; t.dispatchEvent(new Event('change'));"
                                      "return getComputedStyle(document.body).backgroundColor", value) for value in ("light", "dark", "")]
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 23, 26)", "rgb(21, 23, 26)"]


def test_names_for_those_who_do_not_see_it(opened, pages):
    browser = opened(pages("softmax", "spacemit-x60"))
    nameless = browser.execute_script("""return [...document.querySelectorAll('button, input, select, pre, section, nav, [role]')].filter(e => e.checkVisibility()
        && !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim() || e.labels && e.labels.length)).map(e => e.outerHTML.slice(0, 80))""")
    assert nameless == []
    press(browser, "Tab")
    outline = browser.execute_script("const e = document.querySelector('.pane.asm pre'); e.focus({focusVisible: true}); return getComputedStyle(e).outlineStyle")
    assert outline == "solid"
    assert browser.execute_script("return document.getElementById('detail').getAttribute('aria-live')") == "polite"


def test_paper_has_whole_panes_and_no_tools(opened, pages):
    browser = opened(pages("softmax", "spacemit-x60"))
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        state = browser.execute_script("""const p = document.querySelector('.pane.asm pre');
            return [document.getElementById('switches').checkVisibility(), p.scrollHeight <= p.clientHeight + 1, document.documentElement.scrollWidth <= innerWidth]""")
        assert state == [False, True, True]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


# --- several kernels, two sides --------------------------------------------------------------------------------------


def judged(target, case="fp32"):
    op = registry.get("softmax")
    return report.of(code.of_launch(launches.of_op(op, op.cases[0], case, "cpu")[0], targets.get(target)))


def test_several_kernels_are_a_list(opened, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page.render([judged("rv64gcv"), judged("neoverse-v2"), judged("rv64gc")],
                                ranked=[{"time": "2 ms", "share": 0.8, "launches": 7}, {"time": "0.4 ms", "share": 0.15}, {"time": "1 us", "share": 0.05}]))
    browser = opened(path)
    listed = rows(browser, "#kernels tbody tr")
    assert len(listed) == 3 and "2 ms" in listed[0] and "80%" in listed[0] and "neoverse-v2" in listed[1]
    browser.find_elements("css selector", "#kernels tbody button")[1].click()
    assert "neoverse-v2" in browser.find_element("tag name", "h1").text and "k=1" in browser.current_url
    press(browser, "]")
    assert "rv64gc" in browser.find_element("tag name", "h1").text and rows(browser, "#kernels tr.current")[0].startswith("softmax")
    assert in_view(browser, ".pane.asm .here")


def test_two_sides(opened, tmp_path, capsys):
    path = tmp_path / "page.html"
    assert main(["asm", "softmax", "--target", "x86-64-v4", "--diff", "spacemit-x60", "--html", str(path)]) == 0
    capsys.readouterr()
    browser = opened(path)
    assert browser.execute_script("return [...document.querySelectorAll('#panes .pane')].map(e => e.id)") == ["pane-source", "pane-asm", "pane-b-asm"]
    title = browser.find_element("tag name", "h1").text
    assert "x86-64-v4" in title and "spacemit-x60" in title
    source = next(e for e in browser.find_elements("css selector", ".pane.source [data-k]") if "tl.exp(wide" in e.text)
    browser.execute_script("arguments[0].click()", source)
    for pane in ("#pane-asm", "#pane-b-asm"):
        assert rows(browser, f"{pane} .pin"), pane
    assert any("verdict" in x for x in rows(browser, ".pair tr"))
    press(browser, "n", "n", "n", "p")
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_a_saved_report_is_a_side():
    """What `--json` printed is enough for loops and assembly; stages are not in it."""
    saved = json.loads(json.dumps(judged("rv64gcv").as_dict()))
    kernel = held(page.render([judged("x86-64-v3")], [saved]))["kernels"][0]
    assert [s["target"] for s in kernel["sides"]] == ["x86-64-v3", "rv64gcv"] and "b-asm" in [p["id"] for p in kernel["panes"]]
    assert any(loop["side"] == 1 for loop in kernel["loops"])


def test_bounds_and_runs_are_shown(opened, tmp_path):
    """What a report has where somebody worked it out: cycles of a loop, requests of memory, trip counts, the share of work, what a program ran."""
    saved = judged("rv64gcv").as_dict()
    hot = next(loop for loop in saved["loops"] if loop["hot"])
    hot |= {"heat": 0.97, "trips": 64.0, "memory": {"bytes_per_request": 32, "best": 512, "sectors": 4, "sector": 32, "width_bits": 8, "coalescing": 0.25,
                                                      "conflicts": 1.5},
            "bound": {"cycles": 36.0, "model": "spacemit-x60", "elements": 32, "bytes": 128, "flops": 64, "limits": {"ports": 14.0, "dependencies": 12.0},
                      "peak_share": 0.11, "words": ["36.0 of 14.0 cycles: instructions wait for results", "11% of the peak"]}}
    saved |= {"share": 0.996, "occupancy": {"share": 0.75, "warps": 48, "most": 64, "limit": "registers", "blocks": None}, "bounds": "by the model of a test",
              "run": {"launches": 7, "seconds": 0.002, "share": 0.8, "calls": [{"grid": [4, 1, 1], "arguments": "n=128", "launches": 7}], "more": 1}}
    path = tmp_path / "page.html"
    path.write_text(page.render([saved, saved | {"run": None, "share": None}]))
    browser = opened(path)
    card, facts, table = (browser.find_element("id", x).text for x in ("card", "facts", "table"))
    for words in ("36.0 of 14.0 cycles: instructions wait for results", "11% of the peak", "ports", "14", "32 elements a turn, 1.13 cycles each",
                  "64 times through", "32 bytes a request in 4 sectors of 32", "coalescing 25%", "512 bytes a request at best", "bank conflicts cost 150% more", "97% of the estimated work"):
        assert words in card, (words, card)
    for words in ("99.6% of the work is vector", "occupancy 75% (48 of 64 warps, by registers)", "by the model of a test", "launches 7", "2 ms", "grid 4x1x1, n=128 and 1 others"):
        assert words in facts, (words, facts)
    assert all(words in table for words in ("cycles", "of peak", "trips", "coalescing", "25%")), table
    widths = browser.execute_script("return [...document.querySelectorAll('.limits i')].map(e => e.style.width)")
    assert widths[0] == "100%" and widths[1:] == [f"{100 * x / 36:.4f}%" for x in (14, 12)]
    listed = rows(browser, "#kernels tbody tr")
    assert "80%" in listed[0] and "7" in listed[0] and "99.6%" in listed[0] and "%" not in listed[1]


def test_no_more_than_all(opened, pages):
    """A share is 100% where it is all, and 0% where it is none."""
    said = opened(pages("softmax", "spacemit-x60")).execute_script("return [0, 1, .9999, .996, .994, .5, .05, .0004].map(percent)")
    assert said == ["0%", "100%", "99.9%", "99.6%", "99%", "50%", "5.0%", "<0.1%"]


def test_the_kernels_own_source_comes_before_headers(opened, tmp_path):
    """A loop whose arithmetic is a header's, in a file whose loop is one's own."""
    (tmp_path / "mine.c").write_text("".join(f"line {n}\n" for n in range(1, 41)))
    (tmp_path / "avxintrin.h").write_text("inline\n" * 900)
    source = tmp_path / "x.s"
    source.write_text(f'\t.text\n\t.file 1 "{tmp_path}" "avxintrin.h"\n\t.file 2 "{tmp_path}" "mine.c"\n\t.type f,@function\nf:\n.L1:\n\t.loc 1 800 3\n'
                      "\tvmovups (%rdi,%rax,4), %zmm0\n\tvaddps %zmm0, %zmm0, %zmm0\n\tvmovups %zmm0, (%rdi,%rax,4)\n\t.loc 2 33 1\n\taddq $16, %rax\n"
                      "\tcmpq %rcx, %rax\n\tjne .L1\n\tret\n")
    path = tmp_path / "page.html"
    assert main(["asm", str(source), "--html", str(path)]) == 0
    browser = opened(path, 1440, 600)
    assert rows(browser, "#panes h3 span") == ["mine.c", "assembly, x86-64"]
    assert rows(browser, ".pane.source .here") == ["33line 33"] and in_view(browser, ".pane.source .here")
    press(browser, "1", "2")
    assert rows(browser, "#panes h3 span")[0] == "avxintrin.h" and in_view(browser, ".pane.source .here")
    assert rows(browser, ".pane.source .row")[0].startswith("781")


# --- what is in the file ---------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_else():
    made = judged("rv64gcv")
    made.code.name = "</script><script>alert(1)</script>@DATA@"
    made.code.stages["source"] = "</script><img src=x onerror=alert(2)>\n" * 3
    text = page.render([made])
    assert "http:" not in text and "https:" not in text and "src=" not in text and "<link rel=\"icon\" href=\"data:,\">" in text
    assert "<script>alert" not in text and "&lt;script&gt;" in text and text.count("</script>") == 7
    kernel = held(text)["kernels"][0]
    assert kernel["name"] == made.code.name and kernel["panes"][0]["lines"][0].startswith("</script><img")


def test_the_sizes_of_files():
    assert len(page.render([judged("spacemit-x60")])) < 120_000


def test_links_go_by_names_of_loops():
    """Ids are the report's own where it has them; numbers in text order else, B for what is outside of loops."""
    made = judged("rv64gcv")
    kernel = held(page.render([made]))["kernels"][0]
    ids = [loop["id"] for loop in kernel["loops"]]
    assert len(set(ids)) == len(ids) and {x[0] for x in ids} == {"L", "B"}
    asm = next(p for p in kernel["panes"] if p["kind"] == "asm")
    total = sum(len(f.instructions) for f in made.functions)
    assert sum(w >= 0 for w in asm["what"]) == total and len(asm["lines"]) == len(asm["keys"]) == len(asm["says"]) == len(asm["what"])
    for (a, b) in itertools.pairwise(asm["folds"]):
        assert a[0] < a[1] <= b[0]
    hot = next(n for n, loop in enumerate(kernel["loops"]) if loop.get("hot"))
    own = next(r for r in made.regions if r.hot)
    assert sum(sum(w >= 0 for w in asm["what"][f[0]:f[1]]) for f in asm["folds"] if f[4] == hot) == len(own.instructions)


def test_without_words_and_lines():
    """Assembly without debug information, and without anything to judge."""
    from pathlib import Path
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.s"
        path.write_text("f:\n\tnop\n\tfrobnicate %eax\n\tret\n")
        kernel = held(page.render([report.inspect(path, "native")]))["kernels"][0]
        assert [p["kind"] for p in kernel["panes"]] == ["asm"] and kernel["places"] == []
        with pytest.raises(Error):
            report.inspect(Path(folder) / "x.s", "no-such-target")
