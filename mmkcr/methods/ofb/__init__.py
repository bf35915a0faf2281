"""Once for Both: which units matter and how many a dimension needs, in one search.

A bi-mask multiplies every searched dimension: ``m = w sigmoid(S) + (1 - w) V(alpha)``, with an
importance S of every unit and the sparsity V of probabilities over a few sizes on offer. Sizes that
become unlikely are dropped, and weights, moments and averages are sliced while training goes on, so
the network at the end of the search is the subnet. There is no split of the data.

- ``bimask``: the gate
- ``adaptive_one_hot``: the terms that make probabilities one-hot, within the budget
- ``progressive_pruning``: the hook that drops sizes and slices
- ``masked_search``: masked image modelling beside the task
"""
