# KCR-ViT-B fine-tuned on Oxford-IIIT Pet (KCR v2, D.1).
# bash tools/dist_train.sh configs/kcr/transfer/kcr-transfer_vit-base_8xb64_pets.py 8
# Not run. Reported: top-1 96.6 %.
_base_ = './kcr-transfer_vit-base_8xb64_cars.py'

data_preprocessor = dict(num_classes=37)
train_dataloader = dict(
    dataset=dict(type='OxfordIIITPet', data_root='data/Oxford-IIIT_Pets', split='trainval'))
val_dataloader = dict(
    dataset=dict(type='OxfordIIITPet', data_root='data/Oxford-IIIT_Pets', split='test'))
test_dataloader = val_dataloader
model = dict(head=dict(num_classes=37))
