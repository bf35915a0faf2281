"""mmdet's SSD head, able to predict.

Not imported with the package, which runs without mmdet's compiled operators: configs import it.
"""

from mmdet.models.dense_heads import SSDHead

from mmkcr.registry import MODELS


@MODELS.register_module()
class SSDLiteHead(SSDHead):
    """mmdet's ``SSDHead``, whose prediction asks for a ``loss_cls`` that it does not have.

    Args:
        *args: See :class:`mmdet.models.SSDHead`.
        **kwargs: Likewise.
    """

    loss_cls = None
