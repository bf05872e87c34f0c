"""The Python blocks of the README run, in order, in one namespace; those that need a GPU are compiled without one."""

import pathlib
import re

import torch

README = pathlib.Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```python( cuda)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_blocks_run(capsys):
    text = README.read_text(encoding="utf-8")
    names: dict = {"__name__": "readme"}
    ran = 0
    for block in BLOCK.finditer(text):
        line = text[: block.start(2)].count("\n")
        # Errors have the line of the README.
        code = compile("\n" * line + block[2], str(README), "exec")
        if not block[1] or (torch.cuda.is_available() and "model" not in block[2]):
            exec(code, names)
            ran += 1
    assert ran >= 10 and "causal_attention_grad_rows" in capsys.readouterr().out
    assert text.count("```python") == len(BLOCK.findall(text))
