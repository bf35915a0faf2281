"""Layers that a method adds to a backbone and that stay in the subnet."""


from torch import nn


class AddedLayer(nn.Module):
    """A layer of supernet and subnet that the dense parent lacks.

    Its MACs and parameters count for the subnet, but not for the dense model. A supernet must call
    it as a module, so that its MACs can be told apart.
    """


def added_layers(root: nn.Module) -> dict[str, AddedLayer]:
    """The added layers below ``root`` by module path, in the order of their registration."""
    return {name: module for name, module in root.named_modules() if isinstance(module, AddedLayer)}
