"""The page in headless Chromium: offline, hovering and clicking link lines in all panes, loops folded by heat."""

import pytest
from triport.tools.__main__ import main
from triport.tools.inspector import code, launches, page, report, targets
from triport.ops import registry


@pytest.mark.parametrize("target", ["spacemit-x60", "native", "sm_90", "gfx942"])
def test_a_click_lights_up_all_panes(browser, tmp_path, target):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    path = tmp_path / "page.html"
    assert main(["asm", "softmax", "--target", target, "--html", str(path)]) == 0
    browser.get(path.as_uri())
    titles = [e.text for e in browser.find_elements(By.CSS_SELECTOR, ".pane h3")]
    assert any(t.startswith("source softmax.py") for t in titles) and {"TTIR", "LLVM IR"} <= set(titles) and len(titles) >= 4
    source = next(e for e in browser.find_elements(By.CSS_SELECTOR, ".pane.source [data-k]") if "tl.exp(wide" in e.text)
    ActionChains(browser).move_to_element(source).perform()
    lit = browser.find_elements(By.CSS_SELECTOR, ".pane.asm .lit")
    assert lit and all(e.get_attribute("data-k") == source.get_attribute("data-k") for e in lit)
    source.click()
    for pane in ("source", "ttir", "llir", "asm"):
        assert browser.find_elements(By.CSS_SELECTOR, f".pane.{pane} .pin"), pane
    first = browser.find_element(By.CSS_SELECTOR, ".pane.asm .pin")
    box, inside = first.rect, browser.find_element(By.CSS_SELECTOR, ".pane.asm pre").rect
    shown = browser.execute_script("const r=arguments[0].getBoundingClientRect(),p=arguments[1].getBoundingClientRect();return r.top>=p.top-1&&r.bottom<=p.bottom+1",
                                   first, browser.find_element(By.CSS_SELECTOR, ".pane.asm pre"))
    assert shown, (box, inside)
    source.click()
    assert not browser.find_elements(By.CSS_SELECTOR, ".pin")
    folds = browser.find_elements(By.CSS_SELECTOR, ".pane.asm details")
    assert folds and all(f.get_attribute("open") for f in folds if "hot" in f.get_attribute("class"))
    assert not [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


def test_the_page_needs_nothing_else():
    op = registry.get("softmax")
    made = code.of_launch(launches.of_op(op, op.cases[0], "fp32", "cpu")[0], targets.get("rv64gcv"))
    made.name = "<script>alert(1)</script>"
    text = page.render([report.of(made)])
    assert "http" not in text.replace("http-equiv", "") and "src=" not in text and "<link" not in text
    assert "<script>alert" not in text and "&lt;script&gt;" in text
