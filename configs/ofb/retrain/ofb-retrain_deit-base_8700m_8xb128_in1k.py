# The 8.7G subnet of DeiT-B, retrained from the inherited weights at 6e-4.
# bash tools/dist_train.sh configs/ofb/search/ofb-search_deit-base_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-search_deit-base_8700m_8xb128_in1k \
#     --cfg-options compression.target=8.7G
# python tools/slim.py configs/ofb/search/ofb-search_deit-base_8xb128_in1k.py \
#     work_dirs/ofb-search_deit-base_8700m_8xb128_in1k/epoch_200.pth \
#     --out work_dirs/ofb-search_deit-base_8700m_8xb128_in1k/slim
# bash tools/dist_train.sh configs/ofb/retrain/ofb-retrain_deit-base_8700m_8xb128_in1k.py 8
# The subnet of 3.6G: the same with its target and folder, and at last
# RUN=work_dirs/ofb-search_deit-base_3600m_8xb128_in1k
# bash tools/dist_train.sh configs/ofb/retrain/ofb-retrain_deit-base_8700m_8xb128_in1k.py 8 \
#     --work-dir work_dirs/ofb-retrain_deit-base_3600m_8xb128_in1k --cfg-options \
#     model.backbone.structure=$RUN/slim/structure.json load_from=$RUN/slim/subnet.pth
# Not run. Reported: top-1 81.7 % (3.6G: 80.3 %).
_base_ = './ofb-retrain_deit-small_1700m_8xb128_in1k.py'

# written by tools/slim.py
slim_dir = 'work_dirs/ofb-search_deit-base_8700m_8xb128_in1k/slim'
model = dict(
    backbone=dict(arch='deit-base', structure=f'{slim_dir}/structure.json'),
    head=dict(in_channels=768))
load_from = f'{slim_dir}/subnet.pth'
del slim_dir
