"""What setup.cfg cannot say: the links that a release shows on PyPI, which has no files of this project beside its page.

`TRIPORT_URL` is the repository's address (https://github.com/OWNER/NAME, or a GitLab's); `.ci/package` gives it. An sdist remembers it. Without one the
page has PyPI's own address alone, and README's links stay as they are."""

import os
import re
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def home() -> str | None:
    """The repository's address, as this build was given it or as the sdist that it builds has it."""
    url = os.environ.get("TRIPORT_URL", "")
    if not url and (ROOT / "PKG-INFO").exists():
        named = (x.partition(", ") for x in message_from_string((ROOT / "PKG-INFO").read_text()).get_all("Project-URL", ()))
        url = next((address for name, _, address in named if name == "Source"), "")
    if url and not re.fullmatch(r"https://[\w.-]+\.\w+/[\w./-]+", url):
        raise SystemExit(f"TRIPORT_URL: {url!r} is no repository's address; for example https://github.com/OWNER/NAME")
    return url.removesuffix("/").removesuffix(".git") or None


def absolute(text: str, url: str, version: str) -> str:
    """A page of the repository's root, whose relative links lead to its files at the release's tag."""
    text = re.sub(r"(!\[[^]]*\]\()(?!\w+://|#)([^)#\s]+\))", rf"\1{url}/raw/v{version}/\2", text)
    parts = re.split(r"(```.*?```|`[^`]*`)", text, flags=re.S)  # code at the odd places
    parts[::2] = [re.sub(r"(?<!!)(\[[^]]*\]\()(?!\w+://|#)([^)\s]+\))", rf"\1{url}/blob/v{version}/\2", x) for x in parts[::2]]
    return "".join(parts)


def links(url: str, version: str) -> dict:
    """`setup`'s arguments for a repository at this address."""
    pages = {"Source": url, "Documentation": f"{url}/tree/v{version}/docs", "Changelog": f"{url}/blob/v{version}/CHANGELOG.md", "Issues": f"{url}/issues"}
    return {"url": url, "project_urls": pages, "long_description_content_type": "text/markdown",
            "long_description": absolute((ROOT / "README.md").read_text(), url, version)}


if __name__ == "__main__":
    from setuptools import setup

    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    url = home()
    setup(**(links(url, config["metadata"]["version"]) if url else {}))
