"""Drop-in depthwise convolution: heads that look at the same places become a convolution.

A depthwise 3 x 3 convolution of their values (:mod:`mmkcr.models.layers.head_operators`) replaces
their attention; then the network is fine-tuned. It replaces the heads whose attention varies least
over images (``tools/analysis_tools/score_heads.py``), or what a relaxed top-k of gates learns
(``top_k``).
"""
