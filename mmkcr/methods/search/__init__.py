"""Common parts of the papers: a search by gates, from the wrapper of the task to the sliced subnet.

A run goes through these files in this order.

- ``search_model``, ``regularized``: the task model with a price and further terms in its losses;
  gates that start from given scores
- ``gumbel``: a gate a unit, relaxed by noise
- ``price``: the expected cost of the supernet, in the loss
- ``constructors``: optimizers with gates apart
- ``bilevel``: data of gates and of weights, and their turns
- ``schedules``: the temperature of gates, values that change linearly, terms that begin later
- ``refresh``: terms whose state comes from all of the data; features for metrics
- ``slimming``: gates to a structure within a budget, and the subnet
"""
