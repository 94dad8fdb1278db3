"""A PipelineModule whose ties hold. Needs torch and DeepSpeed (0.14.5 or newer) and nothing else of tiespec.

``TiedPipeline`` is a mixin before ``deepspeed.pipe.PipelineModule`` or a subclass of it. It calls the stock methods and
changes only what they get wrong; each override names the fault. Two ideas carry it:

- Before the first collective of a tie, the ranks of a pipeline tell each other what they hold. A difference is the same
  error on every rank.
- A tied parameter that is not used gets a gradient of zeros: when the gradients are reduced, or, where an optimizer of
  DeepSpeed takes them before that, in the stage's backward pass (``touch_all``). Then no rank is without a gradient, and the
  stock reduction is right in every precision.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule as _StockPipelineModule
from deepspeed.pipe import TiedLayerSpec
from torch import nn

from tiespec.errors import TieOutOfSyncError
from tiespec.runtime.arguments import check_keys, check_ties, steps_of, ties_of, warn_of_lost_ties
from tiespec.runtime.copies import (
    Copy,
    compare_frozen,
    copies_of,
    digest,
    make_group,
    parameter_copies,
    weights_to_reduce,
)
from tiespec.runtime.handshake import agree, compare, tell
from tiespec.runtime.layers import Bound, own_module, same_recipe, touch_all


def _stock(self: Any, name: str) -> Callable[..., Any]:
    """The method after the mixin's: of the user's class, or of DeepSpeed's (also when ``install()`` has replaced it)."""
    mro = type(self).__mro__
    if TiedPipeline not in mro:  # install() has put the mixin's methods into DeepSpeed's class itself
        return _ORIGINAL[name].__get__(self)  # type: ignore[no-any-return]
    for cls in mro[mro.index(TiedPipeline) + 1 :]:
        found = cls.__dict__.get(name)
        if found is not None:
            return (_ORIGINAL[name] if found is TiedPipeline.__dict__[name] else found).__get__(self)  # type: ignore[no-any-return]
    raise AttributeError(name)


class TiedPipeline:
    """Mixin: ``class Pipe(TiedPipeline, PipelineModule)``. See ``PipelineModule`` below for the arguments it adds."""

    def __init__(self, *args: Any, ties: Any = (), check_every: int = 0, **kwargs: Any) -> None:
        if "_parameter_ties" in vars(self):  # install() and a patched class: the inner call is for DeepSpeed's own
            _ORIGINAL["__init__"](self, *args, **kwargs)
            return
        self._parameter_ties = ties_of(ties)
        self._check_every, self._reductions = steps_of(check_every), 0
        self._copies: list[Copy] = []
        self._wrong: str | None = None
        _stock(self, "__init__")(*args, **kwargs)

    def _build(self) -> None:
        """Stock (all releases) runs the first class of a key in a stage for all, and hides modules in partials."""
        here: Any = self
        check_keys(here._layer_specs)
        check_ties(self._parameter_ties, here._layer_specs)
        _stock(self, "_build")()
        owners: dict[Any, tuple[nn.Module, TiedLayerSpec]] = {}
        for local, spec in enumerate(here._layer_specs[here._local_start : here._local_stop]):
            if not isinstance(spec, TiedLayerSpec):
                continue
            module, owner = owners.setdefault(spec.key, (here.tied_modules[spec.key], spec))
            if not same_recipe(spec, owner):
                module = own_module(here, here._local_start + local, spec, module, owner)
            here.forward_funcs[local] = module if spec.forward_fn is None else Bound(module, spec.forward_fn)

    def _index_tied_modules(self) -> dict[str, Any]:
        """Stock (before 0.16.6) walks over a set of keys, and (all releases) trusts that all ranks hold the same."""
        here: Any = self
        if here._topo.get_dim("pipe") == 1:
            compare([{**tell(here), "held": {}}])
            parameter_copies(here)
            return {}
        warn_of_lost_ties(here)
        told = tell(here)
        everyone: list[Any] = [None] * dist.get_world_size(here._grid.get_pipe_parallel_group())
        dist.all_gather_object(everyone, told, group=here._grid.get_pipe_parallel_group())
        agree(everyone)
        self._copies = copies_of(here, everyone)
        comms = {}
        for copy in self._copies:
            copy.group, copy.ranks = make_group(here, copy.stages)
            if here.stage_id in copy.stages:
                comms[copy.key] = _comm(here, copy)
        self._copies = [copy for copy in self._copies if here.stage_id in copy.stages]
        touch_all(here, self._copies)
        return comms

    def _synchronize_tied_weights(self) -> None:
        """Stock (all releases) broadcasts the listed names; here it is every parameter and buffer of the tie."""
        for copy in self._copies:
            for tensor in copy.tensors:
                tensor.data = tensor.data.contiguous()  # a collective refuses a view with gaps
                dist.broadcast(tensor.data, src=copy.ranks[0], group=copy.group)

    def get_tied_weights_and_groups(self) -> list[tuple[Any, Any]]:
        """Stock (all releases) lists a Parameter once for each name, and frozen ones; the engine asks once a step."""
        due = bool(self._check_every) and self._reductions % self._check_every == 0
        if due or self._reductions == 0:
            compare_frozen(self._copies)
        if due:
            self.assert_ties_in_sync()
        self._reductions += 1
        return [(weight, copy.group) for copy in self._copies for weight in weights_to_reduce(copy)]

    def allreduce_tied_weight_gradients(self) -> None:
        """Stock (all releases) reduces what its lists name; here it is the same as the engine does in a step."""
        for weight, group in self.get_tied_weights_and_groups():
            if weight.grad is not None:
                dist.all_reduce(weight.grad, group=group)

    def load_state_dir(self, load_dir: str, *args: Any, **kwargs: Any) -> None:
        """A checkpoint that stock (all releases) wrote has no file for a layer behind a ``forward_fn``."""
        here: Any = self
        for local, function in enumerate(here.forward_funcs):
            if isinstance(function, Bound):
                function.has_file = bool(here.ckpt_layer_path_list(load_dir, local))
        _stock(self, "load_state_dir")(load_dir, *args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Stock (all that have it) puts a compiled function, without a state, for a layer behind a ``forward_fn``."""
        here: Any = self
        bound = {i: f for i, f in enumerate(here.forward_funcs) if isinstance(f, Bound)}
        _stock(self, "compile")(*args, **kwargs)
        for i, function in bound.items():
            function.function = torch.compile(function.function, *args, **kwargs)
            here.forward_funcs[i] = function

    def assert_ties_in_sync(self) -> None:
        """Compare a digest of every tied tensor on all ranks that hold it.

        Raises:
            TieOutOfSyncError: on every rank of the tie, naming the tensor and the ranks that differ from the first.
        """
        for copy in self._copies:
            mine = torch.stack([digest(tensor) for tensor in copy.tensors])
            everyone = [torch.empty_like(mine) for _ in copy.ranks]
            dist.all_gather(everyone, mine, group=copy.group)
            for i, name in enumerate(copy.names):
                ranks = zip(copy.ranks, everyone, strict=True)
                differ = [str(rank) for rank, digests in ranks if not torch.equal(digests[i], everyone[0][i])]
                if differ:
                    what = f'"{name}" of tie "{copy.key}" on rank {", ".join(differ)} differs from rank {copy.ranks[0]}'
                    raise TieOutOfSyncError(what, "something wrote to one copy alone: load weights on every rank alike")

    @property
    def universal_checkpoint_info(self) -> dict[str, Any]:
        """What DeepSpeed's universal checkpoints must know: which parameters are copies; and what the user's class says."""
        name = "universal_checkpoint_info"
        ours = TiedPipeline.__dict__[name]  # install() has put it into DeepSpeed's class, too
        theirs = next((f for c in _after_mixin(self) if (f := c.__dict__.get(name)) not in (None, ours)), None)
        info: dict[str, Any] = {"universal_checkpoint_version": 0.2} if theirs is None else dict(theirs.__get__(self))
        patterns = [f"^{re.escape(name)}$" for name in sorted({n for copy in self._copies for n in copy.everywhere})]
        kept: list[str] = list(info.get("pipeline_replicated_parameter_patterns", ()))
        return {**info, "pipeline_replicated_parameter_patterns": kept + patterns}


def _after_mixin(self: Any) -> list[type]:
    mro = list(type(self).__mro__)
    return mro[mro.index(TiedPipeline) + 1 :] if TiedPipeline in mro else []


_OVERRIDES = (
    "__init__", "_build", "_index_tied_modules", "_synchronize_tied_weights", "get_tied_weights_and_groups",
    "allreduce_tied_weight_gradients", "load_state_dir", "compile",
)  # fmt: skip
_ORIGINAL = {name: _StockPipelineModule.__dict__[name] for name in _OVERRIDES if name in _StockPipelineModule.__dict__}


class PipelineModule(TiedPipeline, _StockPipelineModule):  # type: ignore[misc]
    """A drop-in for ``deepspeed.pipe.PipelineModule``: the same arguments, and

    Args:
        ties (Sequence[Mapping] | TieSpec): ties by parameter between ordinary layers: a spec with ``proposals``, or
            mappings with ``key`` and ``by_layer`` (layer -> names, in the same order).
        check_every (int): compare the copies every so many steps; 0 for never.

    Raises:
        TieMismatchError: the ranks do not hold the same; on every rank.
        TieUnresolvedError: a name means no Parameter; on every rank.
    """


def patched(cls: type) -> type:
    """A subclass of a PipelineModule subclass whose ties hold; its constructor takes ``ties`` and ``check_every`` too.

    Raises:
        TypeError: ``cls`` is no PipelineModule subclass.
    """
    if not (isinstance(cls, type) and issubclass(cls, _StockPipelineModule)):
        raise TypeError(f"patched() takes a subclass of deepspeed.pipe.PipelineModule, not {cls!r}")
    if issubclass(cls, TiedPipeline):
        return cls
    return type(cls.__name__, (TiedPipeline, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})


def install() -> None:
    """Patch ``deepspeed.pipe.PipelineModule`` in place, for frameworks whose class cannot be changed."""
    for name, value in vars(TiedPipeline).items():
        if callable(value) or isinstance(value, property):
            setattr(_StockPipelineModule, name, value)


def _comm(here: Any, copy: Copy) -> dict[str, Any]:
    """An entry of ``tied_comms``, as the engine reads it; stock marks also what is not tied as a copy."""
    holder = nn.Module()
    for i, tensor in enumerate(copy.tensors):
        if isinstance(tensor, nn.Parameter):
            holder.register_parameter(str(i), tensor)
            tensor.ds_pipe_replicated = here.global_rank != copy.ranks[0]  # type: ignore[attr-defined]
    return {"ranks": copy.ranks, "group": copy.group, "weight_attr": list(holder._parameters), "module": holder}
