"""Compression in closed form: profile every site, share the budget out, slice, refit.

Read in this order:

1. ``compression.py``: :func:`compress`, the whole way in one function.
2. ``given.py``: network, images and options as one record, ``Calibration``; ``kinds.py``: which
   sites a model has; ``options.py``: what can be set, and ``Pair``.
3. ``survey.py``, ``profiles.py``: images go through the dense network; ``units.py`` is one site's
   order and losses, ``heads.py`` those of narrower heads. ``readers.py`` and ``calibration.py`` do
   the observing.
4. ``share_out.py``: sizes of all sites for a budget.
5. ``refit_blocks.py``: block after block is sliced and refitted; ``replay.py`` runs both networks
   from a block on.

``refit_structure.py`` refits what a search found, ``whole.py`` compares detectors, ``images.py``
loads images of a config, ``progress.py`` lets a killed call go on. ``distil.py`` is the step
after: the dense network teaches the compressed one.
"""
