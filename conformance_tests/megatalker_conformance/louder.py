"""A checkpoint that shouts: the codec of another with its output raised, so that samples reach their limits."""

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from megatalker.checkpoint import Checkpoint

CODEC = "speech_tokenizer"


def louder(checkpoint: Checkpoint, folder: Path, gain: float) -> Checkpoint:
    """Write a copy whose decoder's last convolution is ``gain`` times as large; other files are linked.

    Args:
        checkpoint: any.
        folder: an empty one.
        gain: of samples before they are clamped.
    """
    last = f"decoder.decoder.{len(checkpoint.codec_config.upsample_rates) + 2}.conv."
    for path in sorted(checkpoint.folder.rglob("*")):
        target = folder / path.relative_to(checkpoint.folder)
        if path.is_dir():
            target.mkdir()
        elif path.parent.name == CODEC and path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                names = file.keys()
                tensors = {name: file.get_tensor(name) * (gain if name.startswith(last) else 1) for name in names}
                save_file(tensors, target, metadata=file.metadata())
        else:
            target.symlink_to(path.resolve())
    return Checkpoint.open(folder)
