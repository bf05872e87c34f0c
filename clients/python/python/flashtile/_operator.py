"""Kernels as operators of PyTorch's dispatcher, each with a fake implementation and its gradient."""

from __future__ import annotations

import hashlib
import keyword
import re
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from . import _shapes
from ._flashtile import FORMS, ArgumentError, Chain, GradientError, fastest_form
from ._flashtile import Kernel as Native
from ._host import DTYPES, OF_NAME, is_plain_type, is_traced

_LIBRARY = torch.library.Library("flashtile", "FRAGMENT")

# Seconds that the host takes for a backward pass, and for each of its kernels: a form is not faster
# than that (the host of an H200, 2026-11-26: 105 to 125 us with two kernels, 150 to 210 with five).
_OF_HOST = 80e-6
_OF_KERNEL = 20e-6
# Shapes of calls whose form is kept.
_SHAPES = 1024

# Operators by name. The name tells text and options, so that equal kernels share an operator. An
# operator is registered once, by one thread.
_OPERATORS: dict[str, "Operator"] = {}
_REGISTERING = threading.RLock()


_NOT_PLAIN = (
    "a tensor that is no plain memory, such as one of a subclass of torch.Tensor; convert it: x.as_subclass(torch.Tensor), "
    "or for numbers that are negated when they are read x.resolve_neg()"
)


def no_forward_mode(kernel: str, name: str) -> str:
    """What is wrong with an input that has a forward-mode derivative."""
    return f"kernel `{kernel}`: `{name}` has a forward-mode derivative, which is not built; use reverse mode"


def _argument(name: str) -> str:
    """A name of an argument in a schema, whose words are those of Python. Arguments are given by their places."""
    return f"{name}__" if keyword.iskeyword(name) else name


class Gradient:
    """The kernels of a gradient, as operators."""

    def __init__(self, forward: "Operator", steps: Sequence["Operator"], of: tuple[str, ...], from_: tuple[str, ...]):
        self.forward, self.steps, self.of, self.from_ = forward, steps, of, from_
        stored = {name for step in steps for name in step.outputs}
        given = {f"grad_{name}" for name in from_}
        #: Names of what the backward pass reads of the forward kernel: inputs and outputs.
        self.needs = {name for step in steps for name in step.inputs} - stored - given
        #: Gradients and scratch that programs add to: their last bits differ from launch to launch.
        self.sums = [param["name"] for step in steps for param in step.params if param["added"]]
        #: Whether a kernel has sizes that none of its inputs tells, or types.
        self.needs_sizes = any(step.missing_sizes for step in steps)
        self.needs_types = any(step.missing_types for step in steps)
        self._chains: dict[tuple, Chain] = {}

    def chain(self, given: tuple[str, ...], returned: tuple[str, ...]) -> Chain:
        """The kernels as one call of the native module, by the names of what they are given and of what is returned."""
        chain = self._chains.get((given, returned))
        if chain is None:
            steps = [(step.native, step.missing_types, step.missing_sizes) for step in self.steps]
            chain = self._chains[given, returned] = Chain(steps, list(given), list(returned))
        return chain

    def seconds(self, device: torch.device, dtypes: dict[str, torch.dtype], sizes: dict[str, int]) -> float | None:
        """What is predicted for all kernels together; `None` if the device has no code for one."""
        if device.type != "cuda":
            return None
        types = [(name, DTYPES[dtype]) for name, dtype in dtypes.items()]
        total = 0.0
        for step in self.steps:
            seconds = step.native.predicted(device.index, types, list(sizes.items()))
            if seconds is None:
                return None
            total += seconds
        return total


class _Kept:
    """What the forward pass of an operator keeps for the backward pass, where some inputs need gradients.

    Values are told by their place: inputs first, then outputs.
    """

    def __init__(self, op: "Operator", needs: Sequence[bool]):
        self.gradient: Gradient | None = None
        #: Outputs that take no gradient, by their number.
        self.undifferentiated: list[int] = []
        #: The gradient in the form that is taken, by device, shapes and types.
        self.forms: dict[tuple, Gradient] = {}
        differentiate = op.differentiate
        if differentiate is None:
            self.error = f"operator flashtile::{op.name} is a gradient; second derivatives are not built"
            return
        self.undifferentiated = [at for at, name in enumerate(op.outputs) if name not in differentiate.from_]
        of = tuple(name for name, is_needed in zip(op.inputs, needs) if is_needed)
        try:
            self.gradient = differentiate(of)
        except GradientError as error:
            self.error = str(error)
            return
        every = [*op.inputs, *op.outputs]
        #: Without all outputs that the backward pass reads, it runs the forward kernel that has them.
        self.again = not self.gradient.needs <= set(every)
        kept = set(op.inputs) if self.again else self.gradient.needs
        is_number = {param["name"] for param in op.params if not param["tensor"]}
        self.tensors_at = [at for at, name in enumerate(every) if name in kept and name not in is_number]
        self.numbers_at = [at for at, name in enumerate(every) if name in kept and name in is_number]
        #: Names of the tensors, then of the numbers.
        self.names = tuple([every[at] for at in (*self.tensors_at, *self.numbers_at)])
        #: Outputs that take a gradient, by their number, and the names of their gradients.
        self.given = [at for at, name in enumerate(op.outputs) if name in differentiate.from_]
        self.given_names = tuple([f"grad_{op.outputs[at]}" for at in self.given])
        self.given_at = [len(op.inputs) + at for at in self.given]
        #: The names of gradients, and for each input the number of its own among them, if it needs one.
        self.returned = tuple([f"grad_{name}" for name in of])
        self.returned_at = [of.index(name) if name in of else None for name in op.inputs]


class Operator:
    """A kernel as an operator: `op` is what the dispatcher knows."""

    def __init__(self, name: str, native: Native, differentiate: "Differentiate | None", into: tuple[str, ...]):
        self.name, self.native, self.differentiate = name, native, differentiate
        #: Outputs that an earlier kernel of a gradient has stored to, and this one stores to in part.
        self.into = into
        self.params = native.params()
        self.inputs = [param["name"] for param in self.params if not param["written"]]
        self.outputs = [param["name"] for param in self.params if param["written"] and param["name"] not in into]
        self._read = [param for param in self.params if not param["written"]]
        self._written = [param for param in self.params if param["written"]]
        self.tensors = [param["name"] for param in self._read if param["tensor"]]
        known = _shapes.determined(self.params, native.known_sizes)
        types = {param["elem"] for param in self._read if param["tensor"] and param["generic"]} | set(native.known_types)
        sizes, type_params = native.generics
        #: What no input tells: the caller gives it behind the inputs.
        self.missing_sizes = [size for size in sizes if size not in known]
        self.missing_types = [name for name in type_params if name not in types]
        self.needs_like = not self.tensors
        #: Whether the caller gives nothing but inputs.
        self._takes_inputs = not (self.needs_like or self.missing_sizes or self.missing_types or into)
        #: Where the tensors are among the inputs, and one of each type parameter.
        self._tensors_at = [at for at, param in enumerate(self._read) if param["tensor"]]
        self._generics = {self._read[at]["elem"]: at for at in self._tensors_at if self._read[at]["generic"]}
        #: What is kept for the backward pass, by which inputs need gradients.
        self._kept: dict[tuple[bool, ...], _Kept] = {}
        self._define()
        self.op = getattr(torch.ops.flashtile, name).default

    def _define(self) -> None:
        kinds = {"f32": "float", "i32": "SymInt"}
        args = [f"{'Tensor' if p['tensor'] else kinds[p['elem']]} {_argument(p['name'])}" for p in self._read]
        args += ["Tensor like__"] if self.needs_like else []
        args += [f"SymInt {size}__" for size in self.missing_sizes]
        args += [f"ScalarType {name}__" for name in self.missing_types]
        args += [f"Tensor(a{at}!) {_argument(name)}" for at, name in enumerate(self.into)]
        returns = "Tensor" if len(self.outputs) == 1 else f"({', '.join(['Tensor'] * len(self.outputs))})"
        tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
        _LIBRARY.define(f"{self.name}({', '.join(args)}) -> {returns}", tags=tags)
        for device in ("CPU", "CUDA"):
            _LIBRARY.impl(self.name, self._run, device)
        qualified = f"flashtile::{self.name}"
        torch.library.register_fake(qualified, self._fake, lib=_LIBRARY)
        if not self.into:  # PyTorch takes gradients of operators that write to no argument alone
            self._define_gradient()

    def _define_gradient(self) -> None:
        """As `torch.library.register_autograd`, which loses forward-mode derivatives: these are refused."""
        known = torch._library.autograd.Info(self._backward, self._set_up)
        run = torch._library.autograd.make_autograd_impl(getattr(torch.ops.flashtile, self.name).default, known)

        def checked(keyset: Any, *args: Any) -> Any:
            # What compiled code is made of, such as fake tensors, was looked at before.
            for at in self._tensors_at if forward_ad._current_level >= 0 else ():
                if is_plain_type(args[at]) and torch._VF._unpack_dual(args[at], level=0).tangent is not None:
                    raise GradientError(no_forward_mode(self.native.name, self.inputs[at]))
            return run(keyset, *args)

        _LIBRARY.impl(self.name, checked, "Autograd", with_keyset=True)

    def _split(self, args: tuple) -> tuple[tuple, Any, list, list]:
        """The inputs, and what the caller gives behind them."""
        inputs, rest = args[: len(self.inputs)], list(args[len(self.inputs) : len(args) - len(self.into)])
        if len(rest) < self.needs_like + len(self.missing_sizes) + len(self.missing_types):
            missing = ", ".join(f"`{name}`" for name in [*self.missing_sizes, *self.missing_types]) or "a device"
            what = f"operator flashtile::{self.name}: no input tells {missing}"
            raise ArgumentError(f"{what}; fix sizes and types with `sizes` and `types`")
        like = rest.pop(0) if self.needs_like else None
        sizes = [(name, rest.pop(0)) for name in self.missing_sizes]
        return inputs, like, sizes, list(zip(self.missing_types, rest))

    def _run(self, *args: Any) -> Any:
        made = self.native.call(args) if self._takes_inputs else self._call_with_more(args)
        if made is None:
            raise ArgumentError(f"operator flashtile::{self.name} was given {_NOT_PLAIN}")
        if self.into:
            made = tuple(x for param, x in zip(self._written, made) if param["name"] not in self.into)
        return _returned(made)

    def _call_with_more(self, args: tuple) -> tuple[torch.Tensor, ...] | None:
        """A launch where the caller gives more than inputs."""
        inputs, like, sizes, types = self._split(args)
        types = [(name, DTYPES[dtype]) for name, dtype in types]
        outputs = None
        if self.into:
            outputs = dict(zip(self.into, args[len(args) - len(self.into) :])) | dict(zip(self.outputs, self._empty(args)))
            outputs = tuple(outputs[param["name"]] for param in self._written)
        return self.native.call(inputs, outputs, like=like, types=types or None, sizes=sizes or None)

    def _fake(self, *args: Any) -> Any:
        return _returned(self._empty(args))

    def _empty(self, args: tuple) -> tuple[torch.Tensor, ...]:
        """Outputs that hold nothing yet."""
        inputs, like, sizes, types = self._split(args)
        tensors = {param["name"]: x for param, x in zip(self._read, inputs) if param["tensor"]}
        known = {**self.native.known_sizes, **dict(sizes)}
        sizes = _shapes.solve(self._read, {name: tuple(x.shape) for name, x in tensors.items()}, known)
        dtypes = {name: OF_NAME[elem] for name, elem in self.native.known_types.items()} | dict(types)
        for param in self._read:
            if param["tensor"] and param["generic"]:
                dtypes.setdefault(param["elem"], tensors[param["name"]].dtype)
        like = next(iter(tensors.values())) if tensors else like

        def empty(param: dict) -> torch.Tensor:
            dtype = dtypes[param["elem"]] if param["generic"] else OF_NAME[param["elem"]]
            return like.new_empty(_shapes.extents(param, sizes), dtype=dtype)

        return tuple(empty(param) for param in self._written if param["name"] not in self.into)

    def _set_up(self, ctx: Any, inputs: tuple, output: Any) -> None:
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        # Of most outputs there is no gradient, or none is asked for: no zeros are made for these.
        ctx.set_materialize_grads(False)
        needs = ctx.needs_input_grad
        kept = ctx.kept = self._kept.get(needs) or self._kept.setdefault(needs, _Kept(self, needs))
        if kept.undifferentiated:
            ctx.mark_non_differentiable(*[outputs[at] for at in kept.undifferentiated])
        if kept.gradient is None:
            return
        values = (*inputs[: len(self.inputs)], *outputs)
        ctx.shapes = [values[at].shape for at in self._tensors_at]
        ctx.dtypes = [values[at].dtype for at in self._generics.values()]
        ctx.forms = [(values[at].shape, values[at].dtype) for at in kept.given_at]
        ctx.numbers = [values[at] for at in kept.numbers_at]
        ctx.save_for_backward(*[values[at] for at in kept.tensors_at])

    def _backward(self, ctx: Any, *grads: torch.Tensor) -> tuple:
        kept: _Kept = ctx.kept
        if kept.gradient is None:
            raise GradientError(kept.error)
        like = next((x for x in grads if x is not None), None)
        if like is None:  # nothing behind it has a gradient
            return (None,) * len(self.inputs)
        # Gradients of gradients are asked for through the dispatcher, which says that there are none.
        traced = is_traced() or any([x is not None and _is_batched(x) for x in grads])
        at_once = not torch.is_grad_enabled() and not traced
        if all(any(type(size) is int and size == 0 for size in shape) for shape, _ in ctx.forms):
            return self._zeros(ctx, like)
        made = self._in_best_form(ctx, like.device, traced)
        if made.sums and torch.are_deterministic_algorithms_enabled():
            self._is_not_deterministic(made.sums)
        # Kernels read no numbers that are to be negated.
        names, values = kept.names, [*[x.resolve_neg() for x in ctx.saved_tensors], *ctx.numbers]
        if kept.again:
            forward, known = made.forward, dict(zip(names, values))
            values += forward.run(at_once, [known[name] for name in self.inputs])
            names += tuple(forward.outputs)
        for number, (shape, dtype) in zip(kept.given, ctx.forms):
            grad = grads[number]
            if grad is not None and (grad.is_nested or grad.layout is not torch.strided):
                raise ArgumentError(f"the gradient of an output of flashtile::{self.name} is nested or sparse; make it dense: x.to_dense()")
            if grad is None:
                grad = like.new_zeros(shape, dtype=dtype)
            grad = grad.resolve_neg()
            # Kernels take rows without gaps.
            values.append(grad if grad.stride(-1) == 1 else grad.contiguous())
        names += kept.given_names
        sizes = self._sizes(ctx, made) if made.needs_sizes else {}
        dtypes = dict(zip(self._generics, ctx.dtypes)) if made.needs_types else {}
        if at_once:
            types = [(name, DTYPES[dtype]) for name, dtype in dtypes.items()]
            found = made.chain(names, kept.returned).call(tuple(values), types or None, list(sizes.items()) or None)
            if found is None:
                raise ArgumentError(f"the gradient of operator flashtile::{self.name} was given {_NOT_PLAIN}")
        else:
            found = self._step_by_step(made, dict(zip(names, values)), like, sizes, dtypes, kept.returned)
        return tuple([None if at is None else found[at] for at in kept.returned_at])

    def _zeros(self, ctx: Any, like: torch.Tensor) -> tuple:
        """The gradients where no output has elements: some kernels divide by a size that is 0 then."""
        shapes, dtypes = dict(zip(self.tensors, ctx.shapes)), dict(zip(self._generics, ctx.dtypes))

        def zeros(param: dict) -> torch.Tensor:
            dtype = dtypes[param["elem"]] if param["generic"] else OF_NAME[param["elem"]]
            return like.new_zeros(shapes[param["name"]], dtype=dtype)

        return tuple([None if at is None else zeros(param) for at, param in zip(ctx.kept.returned_at, self._read)])

    @staticmethod
    def _step_by_step(
        made: Gradient, values: dict[str, Any], like: torch.Tensor, sizes: dict, dtypes: dict, returned: Sequence[str]
    ) -> list[torch.Tensor]:
        """The gradients of these names, each kernel through PyTorch's dispatcher."""
        for step in made.steps:
            args = [values[name] for name in step.inputs]
            if not step._takes_inputs:
                args += [like] if step.needs_like else []
                args += [sizes[name] for name in step.missing_sizes] + [dtypes[name] for name in step.missing_types]
                args += [values[name] for name in step.into]
            values.update(zip(step.outputs, step.run(False, args)))
        return [values[name] for name in returned]

    def _sizes(self, ctx: Any, made: Gradient) -> dict[str, Any]:
        """The sizes of a call, by name, and those that kernels of the gradient have of their own."""
        sizes = _shapes.solve(self._read, dict(zip(self.tensors, ctx.shapes)), self.native.known_sizes)
        shapes = {f"grad_{name}": shape for name, shape in zip(self.tensors, ctx.shapes)}
        for step in made.steps:
            tensors = [param for param in step.params if param["tensor"]]
            sizes = _shapes.solve(tensors, shapes, sizes)
            for param in tensors:
                if all(name in sizes for terms, *_ in param["shape"] for name in terms):
                    shapes[param["name"]] = _shapes.extents(param, sizes)
        return sizes

    def _is_not_deterministic(self, sums: Sequence[str]) -> None:
        """Says so as PyTorch does for its own operators."""
        what = (
            f"operator flashtile::{self.name}: elements are added to {', '.join(f'`{name}`' for name in sums)} in any order, "
            "which `torch.use_deterministic_algorithms(True)` does not allow; detach what is gathered, or pass `warn_only=True`"
        )
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise GradientError(what)
        warnings.warn(what, stacklevel=2)

    def _in_best_form(self, ctx: Any, device: torch.device, traced: bool) -> Gradient:
        """The gradient in the form that is predicted to be the faster one, for the sizes of a call.

        Fused forms give other last bits in each launch. They are not taken in deterministic mode.
        Where sizes are symbols the plain form is taken.
        """
        kept: _Kept = ctx.kept
        if traced and any(type(size) is not int for shape in ctx.shapes for size in shape):
            return kept.gradient
        deterministic = torch.are_deterministic_algorithms_enabled()
        key = (device, deterministic, *ctx.shapes, *ctx.dtypes)
        form = kept.forms.get(key)
        if form is None:
            if len(kept.forms) >= _SHAPES:
                kept.forms.clear()
            form = kept.forms[key] = self._fastest_form(ctx, device, deterministic)
        return form

    def _fastest_form(self, ctx: Any, device: torch.device, deterministic: bool) -> Gradient:
        plain = ctx.kept.gradient
        dtypes = dict(zip(self._generics, ctx.dtypes))
        made, seconds = {}, []
        for name, is_fused in FORMS:
            if is_fused and deterministic:
                continue
            try:
                form = self.differentiate(plain.of, name)
            except GradientError:
                continue
            if form.needs <= plain.needs:
                made[name] = form
                predicted = form.seconds(device, dtypes, self._sizes(ctx, form))
                of_host = _OF_HOST + _OF_KERNEL * len(form.steps)
                seconds.append((name, predicted and max(predicted, of_host)))
        return made[fastest_form(seconds)]

    def run(self, at_once: bool, args: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Results of the operator, as a sequence: through PyTorch's dispatcher, or at once."""
        made = self._run(*args) if at_once else self.op(*args)
        return made if isinstance(made, (tuple, list)) else (made,)

    def differentiable(self, args: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Results of the operator with their gradient, as :meth:`run` through the dispatcher, at a lower cost."""
        made = _Differentiable.apply(*args, self)
        return made if isinstance(made, tuple) else (made,)


# Whether a gradient stands for several, as with `is_grads_batched=True`.
_is_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda x: False)


class _Differentiable(torch.autograd.Function):
    """An operator where nothing but PyTorch's autograd looks at it. The operator is the last input."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        *args, op = args
        made = op._run(*args)
        op._set_up(ctx, args, made)
        ctx.op = op
        return made

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple:
        return (*ctx.op._backward(ctx, *grads), None)


def _returned(made: tuple[torch.Tensor, ...]) -> Any:
    """Results as an operator returns them: none, one, or a tuple."""
    return made if len(made) > 1 else made[0] if made else None


class Differentiate:
    """Derives the gradients of a kernel, each once, by the names of the inputs and the form."""

    def __init__(self, native: Native, from_: Sequence[str]):
        self.native, self.from_ = native, tuple(from_)
        self._made: dict[tuple[tuple[str, ...], str], Gradient | GradientError] = {}

    def __call__(self, of: tuple[str, ...], form: str = "plain") -> Gradient:
        made = self._made.get((of, form))
        if made is None:
            try:
                made = self._derive(of, form)
            except GradientError as error:
                made = error
            self._made[of, form] = made
        if isinstance(made, GradientError):
            # A new exception each time, so that tracebacks do not pile up on one.
            raise GradientError(str(made))
        return made

    def _derive(self, of: tuple[str, ...], form: str) -> Gradient:
        if not self.from_:
            raise GradientError(f"kernel `{self.native.name}` has no output of floats whose gradient could be given")
        forward, steps = self.native.gradient(list(of), list(self.from_), form)
        # The forward kernel of a gradient has the gradients of the kernel.
        made, stored = [], set()
        for step in steps:
            written = [param["name"] for param in step.params() if param["written"]]
            made.append(operator(step, None, tuple(name for name in written if name in stored)))
            stored.update(written)
        return Gradient(operator(forward, self), made, of, self.from_)


def differentiated(native: Native) -> list[str]:
    """The outputs whose gradients are given where the user names none: those of a type parameter, else those of f32."""
    written = [param for param in native.params() if param["written"]]
    generic = [param["name"] for param in written if param["generic"]]
    return generic or [param["name"] for param in written if param["elem"] == "f32"]


def operator(native: Native, differentiate: Differentiate | None, into: tuple[str, ...] = ()) -> Operator:
    """The operator of a kernel, registered once."""
    from_ = ",".join(differentiate.from_) if differentiate else ""
    # The kernel that is differentiated is part of the identity: its gradient is.
    origin = differentiate.native.text if differentiate else ""
    identity = "\0".join([native.name, native.text, native.known, from_, origin, *into])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    name = f"{re.sub(r'[^A-Za-z0-9_]', '_', native.name)}_{digest}"
    with _REGISTERING:
        if name not in _OPERATORS:
            _OPERATORS[name] = Operator(name, native, differentiate, into)
        return _OPERATORS[name]
