"""What a stage runs when one layer stands in for another: whether that raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from tiespec.capture import LiveLayer
from tiespec.elsewhere import Device, on_device
from tiespec.inputs import samples, to_device
from tiespec.state import random_state_kept, seed_all
from tiespec.trace import StrayTensorsToMeta, reason_of, runnable


def first_error(
    live: Sequence[LiveLayer],
    namespace: Any,
    loss_fn: Callable[..., Any] | None,
    given: Sequence[str],
    device: Device,
    owned: bool,
    stands_in: Mapping[int, int],
) -> str | None:
    """Run forward and loss with other modules in some places.

    Args:
        live (Sequence[LiveLayer]): the layers.
        namespace (Any): may have ``example_inputs`` and ``loss_fn``.
        loss_fn (Callable | None): of the PipelineModule.
        given (Sequence[str]): the ``--input`` options.
        device (Device): where the layers, as they are written, did run.
        owned (bool): whether the modules may be used as they are.
        stands_in (Mapping[int, int]): layer -> the layer whose module runs there, with the ``forward_fn`` of the former.

    Returns:
        What the first error is; None when there is none.
    """
    loss_fn = loss_fn or getattr(namespace, "loss_fn", None)
    with ExitStack() as stack:
        stack.enter_context(random_state_kept())
        sample = samples(given, namespace, live)[0]
        layers = runnable(live, device, owned)
        stack.enter_context(on_device(device))
        stack.enter_context(torch.no_grad())
        if device == "meta":
            stack.enter_context(StrayTensorsToMeta())  # type: ignore[no-untyped-call]
        seed_all(0)
        where = torch.device(device)
        outputs, labels = to_device(sample.inputs, where), to_device(sample.labels, where)
        try:
            for index, layer in enumerate(layers):
                module = layers[stands_in.get(index, index)].module
                outputs = replace(layer, module=module)(outputs) if layer.module is not None else layer(outputs)
            if loss_fn is not None and labels is not None:
                loss_fn(outputs, labels)
        except Exception as error:  # the user's layers raise whatever they like
            return reason_of(error)
    return None
