"""Measure, and print what was measured as a Markdown table."""

from __future__ import annotations

from benchmarks.ranks import patched_against_stock


def main() -> None:
    """Two processes on the CPU (gloo); a tiny GPT of six layers in two stages."""
    times = patched_against_stock()
    print("| patched PipelineModule beside stock | stock | patched | ratio |\n|---|---|---|---|")
    for work in ("construction", "step"):
        stock, patched = times[f"{work} stock"], times[f"{work} patched"]
        print(f"| {work} | {stock * 1000:.2f} ms | {patched * 1000:.2f} ms | {patched / stock:.3f} |")
    print(f"| handshake, within the construction | | {times['handshake'] * 1000:.2f} ms | |")


if __name__ == "__main__":
    main()
