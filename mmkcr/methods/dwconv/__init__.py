"""Drop-in depthwise convolution: heads that look at the same places become a convolution.

Some heads of a foundation ViT attend to the same places whatever the image. A depthwise 3 x 3
convolution of their values replaces their attention; then the network is fine-tuned. Which heads:
those whose attention varies least over images, or what a relaxed top-k over gates learns.

- ``top_k``: the gate that learns k of all blocks or heads

How much the attention of a head varies is measured by ``tools/analysis_tools/score_heads.py``.
The operators are layers of the network and stay in it: :mod:`mmkcr.models.layers.head_operators`.
"""
