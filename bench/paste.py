"""Puts what bench/repro.sh wrote into the pages of docs/repro, and its plots into docs/plots/repro.

    python3 bench/paste.py OUT

Of OUT/NAME.md everything stands on the page docs/repro/NAME.md between the lines `<!-- begin: NAME -->` and `<!-- end: NAME -->`,
whose old text it replaces; headings are left out, since the page has its own. OUT/dram.md goes to the page of the archaeology. What is
not in OUT is left as it is. `--check` pastes nothing, and ends with 1 if a page lacks the lines, or the table of the profiler other
columns than bench/dram.py prints. (The tables of `flashtile repro` are compared by a test of the command.)
"""

import argparse
import pathlib
import shutil
import sys

from dram import COLUMNS

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "repro"
PLOTS = ROOT / "docs" / "plots" / "repro"
# The block of each page; that of the profiler stands on the page of the archaeology.
BLOCKS = {name: name for name in ("ladder", "archaeology", "dependence", "rope", "memory")} | {"dram": "archaeology"}


def marks(name):
    return f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->\n"


def replaced(page, name, text):
    """The page with another text in a block; a page without the block, or with two of them, is an error."""
    begin, end = marks(name)
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the lines {begin.strip()} and {end.strip()} do not stand once each, in this order")
    return page[: page.index(begin) + len(begin)] + "\n" + text.strip() + "\n\n" + page[page.index(end) :]


def without_headings(text):
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def tidy(text):
    """At most one empty line between paragraphs."""
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=pathlib.Path, help="what bench/repro.sh wrote")
    parser.add_argument("--check", action="store_true")
    flags = parser.parse_args()
    if not flags.check and flags.out is None:
        parser.error("name the directory that bench/repro.sh wrote, or --check")
    pasted = 0
    for name, of in BLOCKS.items():
        page = PAGES / f"{of}.md"
        old = page.read_text()
        try:
            replaced(old, name, "")
            source = flags.out / f"{name}.md" if flags.out else None
            if source and source.exists() and not flags.check:
                page.write_text(replaced(old, name, tidy(without_headings(source.read_text()))))
                pasted += 1
        except ValueError as error:
            sys.exit(f"{page}: {error}")
    header = "| step | " + " | ".join(head for head, _, _ in COLUMNS) + " |"
    if header not in (PAGES / "archaeology.md").read_text():
        sys.exit(f"{PAGES / 'archaeology.md'} lacks the columns of bench/dram.py:\n{header}")
    if flags.check:
        return
    for plot in sorted((flags.out / "plots").glob("*.svg")):
        shutil.copy(plot, PLOTS / plot.name)
        pasted += 1
    print(f"{pasted} blocks and plots; now read the prose of the pages against the new figures, and run the tests")
    if not pasted:
        sys.exit(f"{flags.out} holds nothing of bench/repro.sh")


if __name__ == "__main__":
    main()
