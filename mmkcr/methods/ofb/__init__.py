"""Once for Both: which units matter and how many a dimension needs, in one search.

A mask on every searched dimension joins the units' importance with probabilities over a few sizes.
Sizes that become unlikely are dropped, and tensors are sliced while training goes on, so the
network at the end of the search is the subnet. There is no split of the data.

- ``bimask``: the gate
- ``adaptive_one_hot``: the terms that make probabilities one-hot, within the budget
- ``progressive_pruning``: the hook that drops sizes and slices
- ``masked_search``: masked image modelling beside the task
"""
