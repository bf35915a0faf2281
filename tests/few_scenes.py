"""A shipped config of a detector on a folder of few digit scenes, for one epoch."""

#: Takes ``base``, a config, and ``data``, the folder, which ends with a slash.
FEW = """
_base_ = {base!r}
train_dataloader = dict(
    batch_size=1, num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r}))
val_dataloader = dict(
    batch_size=1, num_workers=0, persistent_workers=False, dataset=dict(data_root={data!r}))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file={data!r} + 'annotations/instances_validation.json')
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=1)
"""
