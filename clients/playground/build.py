#!/usr/bin/env python3
"""Builds the playground: one file that holds the compiler, the library of kernels and the page.

    python3 clients/playground/build.py [--out FILE] [--offline]

FILE is target/release/playground.html unless one is given: beside the command, where `flashtile playground` finds it.
Needs cargo with the target wasm32-unknown-unknown (`rustup target add wasm32-unknown-unknown`).
"""

import argparse
import base64
import gzip
import hashlib
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = "wasm32-unknown-unknown"
MODULE = HERE / "target" / TARGET / "release" / "flashtile_playground.wasm"
# Compressed, as a server would send it.
MOST_BYTES = 5_000_000


def module(offline):
    command = ["cargo", "build", "--release", "--target", TARGET, *(["--offline"] if offline else [])]
    if subprocess.run(command, cwd=HERE).returncode:
        sys.exit(f"the compiler was not built; is the target there? `rustup target add {TARGET}` adds it")
    return MODULE.read_bytes()


def library():
    """Texts to start from, in groups: those of the command, and those of the published experiments."""
    groups = {"Built-in kernels": ROOT / "runtime/kernels", "Published experiments": ROOT / "runtime/cli/src/repro/kernels"}
    found = {group: sorted(folder.glob("*.rs")) for group, folder in groups.items()}
    for group, files in found.items():
        if not files:
            sys.exit(f"{groups[group]} holds no kernel")
    return {group: {file.stem: file.read_text() for file in files} for group, files in found.items()}


def version():
    """The version of the command, which all crates have."""
    return re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]


def in_script(text):
    """Text that cannot end the script element that holds it."""
    return text.replace("</", "<\\/")


def page(wasm):
    read = lambda name: (HERE / "page" / name).read_text()
    parts = {
        "style": read("style.css"),
        "version": version(),
        "hash": hashlib.sha256(wasm).hexdigest()[:12],
        "module": base64.b64encode(gzip.compress(wasm, mtime=0)).decode(),
        "library": in_script(json.dumps(library())),
        "worker": in_script(read("call.mjs").replace("export function", "function") + read("worker.js")),
        "script": in_script(read("page.js")),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], read("page.html"))


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=pathlib.Path, default=ROOT / "target/release/playground.html")
    flags.add_argument("--offline", action="store_true", help="fetch no crates")
    flags = flags.parse_args()
    text = page(module(flags.offline)).encode()
    compressed = len(gzip.compress(text, mtime=0))
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    flags.out.write_bytes(text)
    print(f"{flags.out}: {len(text)} bytes, {compressed} compressed")
    if compressed > MOST_BYTES:
        sys.exit(f"more than {MOST_BYTES} bytes compressed")


main()
