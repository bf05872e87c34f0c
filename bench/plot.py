#!/usr/bin/env python3
"""Plots of results of bench.py: TFLOP/s over N as SVG, one panel per mask, type and head dim, with the matmul rate as roofline.

    python3 bench/plot.py results.json plots
"""

import collections
import json
import math
import pathlib
import statistics
import sys

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 96, 34, 40
# Told apart also without colour, by dash (Okabe and Ito 2008).
STYLES = {
    "flashtile": ("#d55e00", ""),
    "cuDNN": ("#009e73", "6 3"),
    "FA2": ("#999999", "2 3"),
    "FA3": ("#0072b2", "8 3 2 3"),
    "Triton": ("#cc79a7", "4 4"),
    "Flex": ("#e69f00", "1 3"),
    "FlexFlash": ("#a65628", "5 2 1 2"),
}
OTHER = ("#888888", "10 4")


def series(rows):
    """Per contestant, TFLOP/s by length; ours is the best of each cell."""
    lines = collections.defaultdict(dict)
    for row in rows:
        for name, rate in row["tflops"].items():
            if not name.startswith("flashtile"):
                lines[name][row["length"]] = rate
        if "best" in row:
            lines["flashtile"][row["length"]] = row["tflops"][row["best"]]
    return lines


def panel(title, rows, matmul):
    lines = series(rows)
    lengths = sorted({row["length"] for row in rows})
    top = math.ceil(max([matmul, *(r for line in lines.values() for r in line.values())]) * 1.05 / 100) * 100
    span = math.log2(lengths[-1] / lengths[0]) or 1

    def x(length):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(length / lengths[0]) / span

    def y(rate):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - rate / top)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">']
    out.append('<style>text{fill:#222}.grid{stroke:#ddd}@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}.back{fill:#111}}</style>')
    out.append('<rect class="back" width="100%" height="100%" fill="white"/>')
    out.append(f'<text x="{LEFT}" y="18" font-size="13">{title}</text>')
    for rate in range(0, top + 1, 200):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(rate):.1f}" y2="{y(rate):.1f}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate}</text>')
    for length in lengths:
        text = f"{length // 1024}k" if length % 1024 == 0 else str(length)
        out.append(f'<text x="{x(length):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">N</text>')
    out.append(f'<text x="12" y="{HEIGHT / 2}" transform="rotate(-90 12 {HEIGHT / 2})" text-anchor="middle">TFLOP/s</text>')
    out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(matmul):.1f}" y2="{y(matmul):.1f}" stroke="#888" stroke-dasharray="1 2"/>')
    labels = [(y(matmul), "matmul", "#888")]
    for name, line in sorted(lines.items()):
        colour, dash = STYLES.get(name, OTHER)
        points = " ".join(f"{x(n):.1f},{y(r):.1f}" for n, r in sorted(line.items()))
        width = 2.5 if name == "flashtile" else 1.5
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"/>')
        labels.append((y(line[max(line)]), name, colour))
    at = 0.0
    for place, name, colour in sorted(labels):
        at = max(place + 4, at + 13)
        out.append(f'<text x="{WIDTH - RIGHT + 6}" y="{at:.1f}" style="fill:{colour}">{name}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    groups = collections.defaultdict(list)
    for row in report["rows"]:
        groups[row["group"]].append(row)
    for group, rows in groups.items():
        _, mask, dtype, head_dim = group.split("/")
        title = f"{mask}, {dtype}, d = {head_dim[1:]}"
        (folder / f"{group.replace('/', '_')}.svg").write_text(panel(title, rows, statistics.fmean(report["matmul_tflops"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
