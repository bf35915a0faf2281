# UPerNet for the digit scenes, see kcr_upernet_swin-mini.py; with positions, and losses that are
# means over all pixels, as the bars of its configs were measured.
_base_ = './kcr_upernet_swin-mini.py'

over_all_pixels = dict(loss_decode=dict(avg_non_ignore=False))
model = dict(
    backbone=dict(type='mmkcr.OFBSwinTransformer', use_abs_pos_embed=True),
    decode_head=over_all_pixels,
    auxiliary_head=over_all_pixels)
del over_all_pixels
