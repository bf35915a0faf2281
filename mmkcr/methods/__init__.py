"""The papers, a room each, and their common parts (:mod:`mmkcr.methods.search`).

A method is gates on sites, a price, terms of the loss and schedules. Backbones, kinds of site and
costs are not here: they belong to no method, so methods combine.
"""
