# KCR-ViT-B fine-tuned on Oxford Flowers-102 (KCR v2, D.1).
# bash tools/dist_train.sh configs/kcr/transfer/kcr-transfer_vit-base_8xb64_flowers102.py 8
# Not run. Reported: top-1 98.2 %.
_base_ = './kcr-transfer_vit-base_8xb64_cars.py'

data_preprocessor = dict(num_classes=102)
train_dataloader = dict(
    dataset=dict(type='Flowers102', data_root='data/Flowers102', split='trainval'))
val_dataloader = dict(
    dataset=dict(type='Flowers102', data_root='data/Flowers102', split='test'))
test_dataloader = val_dataloader
model = dict(head=dict(num_classes=102))
