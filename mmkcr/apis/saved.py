"""Networks as files: a folder that ``compress`` wrote, and ONNX."""

from pathlib import Path

from torch import nn

from mmkcr.deploy.export import export_onnx as export
from mmkcr.engine.build import build_model, load_config, load_weights, trained_weights

__all__ = ['export', 'load']


def load(folder: str | Path, device: str = 'cpu') -> nn.Module:
    """Build the network of a folder that ``mmkcr compress`` wrote, with its weights.

    Args:
        folder (str | Path): With ``config.py`` and what it names; or such a config itself.
        device (str): Where it is put. Defaults to ``'cpu'``.

    Returns:
        nn.Module: The task model, in eval mode.

    Raises:
        FileNotFoundError: There is no such config, or no weights.
        ValueError: They do not belong together, or the config names no weights.

    Examples:
        >>> model = load('slim')
        >>> export(model, 'slim.onnx', (3, 224, 224))
    """
    path = Path(folder)
    path = path / 'config.py' if path.is_dir() else path
    config = load_config(path)
    model = build_model(config)
    load_weights(model, trained_weights(config, None, str(path)))
    return model.to(device)
