# DCS on the detector itself: MobileViT-S in SSDLite 320, from ImageNet's weights, on COCO. The
# paper searches on ImageNet alone.
# bash tools/dist_train.sh \
#     configs/dcs/detection/dcs-ssdlite_mobilevit-small_search_8xb16_coco.py 8
# RUN=work_dirs/dcs-ssdlite_mobilevit-small_search_8xb16_coco
# python tools/slim.py configs/dcs/detection/dcs-ssdlite_mobilevit-small_search_8xb16_coco.py \
#     $RUN/epoch_40.pth --target-macs 0.91 --divisor 8
# bash tools/dist_train.sh configs/dcs/detection/dcs-ssdlite_mobilevit-small_8xb16_coco.py 8 \
#     --work-dir work_dirs/dcs-ssdlite_mobilevit-small_slim_8xb16_coco --cfg-options \
#     model.backbone.structure=$RUN/slim/structure.json model.backbone.init_cfg=None \
#     load_from=$RUN/slim/subnet.pth
# Not run. The paper has no such row.
_base_ = [
    './dcs-ssdlite_mobilevit-small_dense_8xb16_coco.py',
    '../../_base_/methods/dcs_search.py',
]

compression = dict(
    sites='own',
    # as the subnet of ImageNet has at 320 px: 2.99 G
    target=0.91)
