"""Compression in closed form: profile every site, share the budget out, slice, refit.

Read in this order:

1. ``compression.py``: :func:`compress`, the whole way in one function; :func:`refit_structure`
   takes sizes that a search chose.
2. ``options.py``: the options, the sites of a model, and ``Pair``; ``given.py``: network, images
   and options as one record, ``Calibration``, and the survey of a few images.
3. ``profiles.py``: images go through the dense network, and the profiles give sizes within a
   budget. ``units.py`` is one site's order and losses, ``heads.py`` a narrower head's;
   ``readers.py`` and ``calibration.py`` do the observing.
4. ``refit_blocks.py``: block after block is sliced and refitted; ``replay.py`` runs from it on.
5. ``report.py``: how well the networks agree, and all that is said.

``batches.py`` and ``images.py`` hold images, ``whole.py`` compares detectors, ``progress.py`` lets
a killed call go on. :mod:`mmkcr.distillation` is the step after: the dense network teaches the
compressed one.
"""
