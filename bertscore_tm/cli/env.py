"""Print versions, devices and which fast ways of computing are on, for a report of an error.

No model is loaded. With --json the same as one document.

Examples::

    bertscore-tm env
    bertscore-tm env --json
"""

import argparse
import platform
from importlib import metadata

from bertscore_tm.cli import output
from bertscore_tm.cli.distributed import RankGroup
from bertscore_tm.utilities.version import __version__

_PACKAGES = ("transformers", "tokenizers", "torchmetrics", "lightning", "scipy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace, ranks: RankGroup) -> None:
    """Print what is installed and used by the first rank."""
    if ranks.rank != 0:
        return

    import torch

    from bertscore_tm.core.onednn import can_use_onednn
    from bertscore_tm.core.precision import fast_half_precision, may_use_tf32
    from bertscore_tm.encoder import default_device
    from bertscore_tm.encoder.packed_rows import has_attention_kernel

    device = default_device()
    fast, weight = fast_half_precision(device), torch.zeros(1, 1, dtype=torch.float32, device="cpu")
    has_kernel = has_attention_kernel(device, torch.bfloat16)
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    document = {
        "bertscore-tm": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "torch": str(torch.__version__),  # with its build
        **{name: _version(name) for name in _PACKAGES},
        "processor": f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
        "GPUs": ", ".join(gpus) or "none",
        "device": str(device),
        "dtype auto": str(fast or torch.float32).removeprefix("torch."),
        "products on the CPU": "oneDNN" if can_use_onednn(weight, weight) else "torch",
        "TF32": "allowed" if may_use_tf32(device) else "no",
        "attention of packed texts": "kernel" if has_kernel else "by length or padded",
    }
    lines = [f"{name}: {value}\n" for name, value in document.items()]
    output.write_output(output.to_json(document) if arguments.json else "".join(lines), None)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
