"""DCS-Transformer: channels for attention's weights and outputs, and an information bottleneck.

A mask by token, computed from the attention's input, selects the channels of queries and keys; it
stays in the network. Gates select channels of the attention's outputs (the kinds
``attention_outputs`` and ``mlp_channels``, gates of :mod:`mmkcr.methods.search.gumbel`). A term of
the retraining bounds I(features, images) - I(features, classes) over clusters.

- ``qk_mask``: the mask, and the queries and keys that masks select
- ``information_bottleneck``: the term, its clusters, once an epoch, and both informations over a
  data set; ``metric``: the same as a metric
"""
