"""mmdet's SSD head, fixed so that it can predict.

The package does not import it, because it needs mmdet's compiled operators: configs import it.
"""

from mmdet.models.dense_heads import SSDHead

from mmkcr.registry import MODELS


@MODELS.register_module()
class SSDLiteHead(SSDHead):
    """mmdet's ``SSDHead``, whose prediction reads an attribute ``loss_cls`` that it lacks."""

    loss_cls = None
