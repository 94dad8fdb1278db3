"""transformers configs: from ``hf:FOLDER`` to a model."""

from __future__ import annotations

import os
from typing import Any

from tiespec.errors import TargetError

_AUTO_CLASSES = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")


def read_config(source: str) -> Any:
    """The config in a folder, or of a name that transformers knows or has cached.

    Raises:
        TargetError: transformers is not installed.
    """
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise TargetError("hf: targets need transformers", "pip install 'tiespec[hf]'") from error
    if not os.path.isdir(source) and (os.sep in source.strip(os.sep) and source.startswith((os.sep, "."))):
        raise TargetError(f"there is no folder {source}", "name the folder that holds config.json")
    try:
        return AutoConfig.from_pretrained(source, local_files_only=True)  # a folder, or what has been downloaded before
    except OSError:
        return AutoConfig.from_pretrained(source)


def build_model(config: Any) -> Any:
    """The model of a config: the class it names as its architecture, else the first auto class that knows it.

    Raises:
        TargetError: transformers has no model for the config.
    """
    import transformers

    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)(config)
    for name in _AUTO_CLASSES:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            return auto.from_config(config)
    raise TargetError(f"transformers has no model for {type(config).__name__}", "give its config an 'architectures' entry")
