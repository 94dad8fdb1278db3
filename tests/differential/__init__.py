"""Random small pipelines, healthy and with faults: what `check` says of them, and what real DeepSpeed does."""
