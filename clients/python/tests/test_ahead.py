"""Tuning and bundles, where there is no GPU: schedules are ranked by the cost model, and code is compiled."""

import dataclasses
import pickle
import threading

import pytest
import torch

import flashtile


def qkv(grad=False, d=16):
    return [torch.randn(1, 2, 64, d, dtype=torch.bfloat16, requires_grad=grad) for _ in range(3)]


def test_launches_of_a_function_are_tuned():
    found = flashtile.tune(flashtile.sdpa, *qkv(), is_causal=True, arch="sm_80", max_candidates=1)
    assert [x.kernel for x in found] == ["sdpa_causal"]
    assert found[0].sizes == {"B": 1, "H": 2, "M": 64, "N": 64, "D": 16, "E": 16}
    assert found[0].is_predicted and 0 < found[0].seconds < 1e-3 and "block_m=" in found[0].schedule
    again = flashtile.tune(flashtile.sdpa, *qkv(), is_causal=True, arch="sm_80", max_candidates=1)
    assert again[0].schedule == found[0].schedule


def test_backward_passes_are_launches_too():
    kernels = [x.kernel for x in flashtile.tune(flashtile.sdpa, *qkv(True, d=24), arch="sm_80", max_candidates=1)]
    assert kernels == ["sdpa", "sdpa_grad_rows", "sdpa_grad_columns"]


@dataclasses.dataclass
class Result:
    states: torch.Tensor


class Model(torch.nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.embedding, self.wrap = torch.nn.Embedding(10, 16).half(), wrap

    def forward(self, tokens):
        x = self.embedding(tokens)[:, None]
        return self.wrap(flashtile.sdpa(x, x, x))


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"loss": [x.sum()]}, Result], ids=["tensor", "dict", "dataclass"])
def test_parameters_need_gradients_too(wrap):
    model = Model(wrap)
    found = flashtile.tune(model, torch.randint(0, 10, (2, 16)), arch="sm_80", max_candidates=1)
    assert [x.kernel for x in found] == ["sdpa", "sdpa_grad_rows", "sdpa_grad_columns"]
    assert model.embedding.weight.grad is None
    # What was computed before keeps its graph.
    q, k, v = (x * 1.0 for x in qkv(True))
    flashtile.tune(flashtile.sdpa, q, k, v, arch="sm_80", max_candidates=1)
    (q.sum() + k.sum() + v.sum()).backward()


def test_what_cannot_be_tuned():
    wrong = [
        (flashtile.ArgumentError, "a NoneType is given for the function", lambda: flashtile.tune(None)),
        (flashtile.ArgumentError, "directory of a bundle is a NoneType", lambda: flashtile.Bundle(None)),
        (flashtile.ArgumentError, "directory of a bundle is a int", lambda: flashtile.write_bundle(3, flashtile.sdpa)),
        (flashtile.TuneError, "no kernel of flashtile", lambda: flashtile.tune(torch.nn.functional.silu, torch.ones(3))),
        (flashtile.TuneError, "no architecture to tune for; name one", lambda: flashtile.tune(flashtile.sdpa, *qkv())),
        (flashtile.KernelError, "sm_1", lambda: flashtile.tune(flashtile.sdpa, *qkv(), arch="sm_1")),
        (flashtile.TuneError, "budget", lambda: flashtile.tune(flashtile.sdpa, *qkv(), arch="sm_80", budget=-1.0)),
        *[
            (flashtile.ArgumentError, "give an architecture", lambda arch=arch: flashtile.write_bundle("none", flashtile.sdpa, *qkv(), arch=arch))
            for arch in ([], (), None, 5, ["sm_80", 3])
        ],
        (flashtile.ArgumentError, "general is 1", lambda: flashtile.write_bundle("none", flashtile.sdpa, *qkv(), general=1)),
    ]
    for kind, message, call in wrong:
        with pytest.raises(kind, match=message):
            call()
    # Nothing is noted behind a call that failed.
    with pytest.raises(flashtile.ArgumentError):
        flashtile.tune(lambda: [flashtile.sdpa(*qkv()), flashtile.sdpa(*qkv(), dropout_p=2.0)], arch="sm_80")
    assert [x.kernel for x in flashtile.tune(flashtile.sdpa, *qkv(), is_causal=True, arch="sm_80", max_candidates=1)] == ["sdpa_causal"]


def test_threads_note_their_own_launches(tmp_path):
    """Two functions at once, one inside of another, and a thread that a function starts."""
    meet, found = threading.Barrier(2, timeout=120), {}

    def write(name, is_causal):
        def function(*inputs):
            meet.wait()
            o = flashtile.sdpa(*inputs, is_causal=is_causal)
            meet.wait()
            return o

        found[name] = flashtile.write_bundle(tmp_path / name, function, *qkv(), arch="sm_80", general=False)

    threads = [threading.Thread(target=write, args=of) for of in (("one", False), ("other", True))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"one": ["sdpa_bf16_d16_e16"], "other": ["sdpa_causal_bf16_d16_e16"]}

    def outer(*inputs):
        flashtile.tune(flashtile.sdpa, *inputs, arch="sm_80", max_candidates=1)
        started = threading.Thread(target=flashtile.sdpa, args=inputs, kwargs={"is_causal": True})
        started.start()
        started.join()

    launched = flashtile.tune(outer, *qkv(), arch="sm_80", max_candidates=1)
    assert [x.kernel for x in launched] == ["sdpa", "sdpa_causal"]


def test_bundles(tmp_path):
    names = flashtile.write_bundle(tmp_path / "bundle", flashtile.sdpa, *qkv(), is_causal=True, arch=["sm_80", "sm_90a"], general=False)
    assert names == ["sdpa_causal_bf16_d16_e16"]
    bundle = flashtile.Bundle(tmp_path / "bundle")
    assert list(bundle) == names and len(bundle) == 1
    attention = bundle[names[0]]
    again = pickle.loads(pickle.dumps({"bundle": bundle, "kernel": attention}))
    assert again["bundle"].names == names and again["kernel"].inputs == attention.inputs
    assert attention.inputs == ("q", "k", "v", "scale") and attention.outputs == ("o",)
    with pytest.raises(flashtile.BundleError, match="cpu runs no compiled code"):
        attention(*qkv(), 0.25)
    with pytest.raises(flashtile.BundleError, match="no kernel `other`"):
        bundle["other"]
    with pytest.raises(flashtile.ArgumentError, match="found by its name, not by 0; the names are sdpa_causal_bf16_d16_e16"):
        bundle[0]
    with pytest.raises(flashtile.GradientError, match="is of a bundle"):
        attention.gradient_text("q", "k", "v")
    # A kernel of the same text that is of no bundle is another one.
    o = flashtile.kernel(attention.text, "sdpa_causal")(*qkv(), 0.25)
    assert o.shape == (1, 2, 64, 16)
    cubin = next((tmp_path / "bundle").glob("*.cubin"))
    cubin.write_bytes(cubin.read_bytes()[:-1])
    with pytest.raises(flashtile.BundleError, match="cubin"):
        flashtile.Bundle(tmp_path / "bundle")
    with pytest.raises(flashtile.BundleError, match="manifest.json"):
        flashtile.Bundle(tmp_path)
