"""KCR-Transformer: the complexity of the features' kernel, lowered where a network is compressed.

One gate a channel at both ends of every MLP learns which channels of the stream the MLP keeps (the
kind ``mlp_channels``, gates of :mod:`mmkcr.methods.search.gumbel`). A term of the loss lowers the
tail of the spectrum of the kernel K = F F^T / n of the features F before the classifier: the bound
on the test loss has its square root.

- ``kernel_complexity``: the term, a residual of the projection on the leading eigenvectors, and the
  hook that computes these anew every 30 epochs
- ``metric``: KC, its approximation and the bounds of the theorem
- ``selfsup``: pre-training by MOCA, which mmpretrain does not have
- ``vqa``: FLAVA and its questions about images
"""
