"""MoCo v3 and other self-supervised models of mmpretrain around a searchable backbone."""

import copy

import mmpretrain.models  # noqa: F401
import pytest
import torch
from mmengine.logging import MessageHub
from mmengine.registry import init_default_scope
from torch import nn

from mmkcr.apis import count_macs, slim
from mmkcr.models.feature_tap import FeatureTap
from mmkcr.models.tasks import hold_copies, momentum_copies, search_space
from mmkcr.registry import MODELS

SHAPE, WIDTH = (3, 32, 32), 32
ARCH = dict(embed_dims=WIDTH, num_layers=2, num_heads=2, feedforward_channels=64)
GATES = dict(type='mmkcr.GumbelChannelGate', min_size=4)


@pytest.fixture(autouse=True)
def scope():
    init_default_scope('mmpretrain')
    MessageHub.get_current_instance().update_info('max_iters', 10)


def perceptron(inputs, layers):
    return dict(type='NonLinearNeck', in_channels=inputs, hid_channels=24, out_channels=16,
                num_layers=layers, with_last_bn_affine=False, with_last_bias=False,
                with_avg_pool=False, norm_cfg=dict(type='BN1d'))


def vit(kind='MoCoV3ViT', **arguments):
    return dict(type=f'mmpretrain.{kind}', arch=ARCH, img_size=32, patch_size=8, **arguments)


def contrastive(host, backbone, temperature=0.2):
    loss = dict(type='CrossEntropyLoss', loss_weight=2 * temperature)
    heads = dict(
        MoCoV3=dict(type='MoCoV3Head', predictor=perceptron(16, 2), loss=loss,
                    temperature=temperature),
        BYOL=dict(type='LatentPredictHead', predictor=perceptron(16, 2),
                  loss=dict(type='CosineSimilarityLoss')),
        SimCLR=dict(type='ContrastiveHead', loss=dict(type='CrossEntropyLoss')))
    return dict(type=f'mmpretrain.{host}', backbone=backbone, neck=perceptron(WIDTH, 3),
                head=heads[host], data_preprocessor=dict(type='SelfSupDataPreprocessor'))


def masked(host, **space):
    if host == 'MAE':
        neck = dict(type='MAEPretrainDecoder', num_patches=16, patch_size=8, embed_dim=WIDTH,
                    decoder_embed_dim=16, decoder_depth=1, decoder_num_heads=2)
        backbone, head = vit('MAEViT'), dict(
            type='MAEPretrainHead', patch_size=8, loss=dict(type='PixelReconstructionLoss',
                                                            criterion='L2'))
    else:
        neck = dict(type='SimMIMLinearDecoder', in_channels=32, encoder_stride=8)
        head = dict(type='SimMIMHead', patch_size=4, loss=dict(
            type='PixelReconstructionLoss', criterion='L1', channel=3))
        backbone = dict(
            type='mmpretrain.SimMIMSwinTransformer', img_size=32, out_indices=(1, ),
            arch=dict(embed_dims=16, depths=[1, 1], num_heads=[2, 2]),
            stage_cfgs=dict(window_size=4))
    return dict(type=f'mmpretrain.{host}', backbone=searchable(backbone, **space), neck=neck,
                head=head)


def searchable(backbone, sites=('mlp_channels', ), **space):
    return dict(type='mmkcr.Searchable', backbone=backbone, sites=list(sites), **space)


def search_model(architecture, **arguments):
    return MODELS.build(dict(type='mmkcr.SearchModel', architecture=architecture, **arguments))


def moco(**space):
    return contrastive('MoCoV3', searchable(vit(stop_grad_conv1=True), **space))


def views(count=6):
    return [torch.randn(count, *SHAPE) for _ in range(2)]


def scatter(model):
    """Weights that are not initial ones; gates of which about half are open."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0., 1. if 'alpha' in name else 0.2)
    for copied in momentum_copies(model):
        copied.steps.fill_(1)
    return model


def train(model, batches, rate=0.05):
    """Losses of some steps of SGD."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], rate)
    found = []
    for batch in batches:
        loss, _ = model.parse_losses(model(batch, mode='loss'))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


# ---- MoCo v3 -----------------------------------------------------------------------------------


@pytest.mark.parametrize('sites, gates', [
    (('mlp_channels', ), GATES), (('mlp_hidden', 'heads'), dict(GATES, min_size=1)),
    (('qk_mask', 'mlp_channels'), GATES),
    (('head_operator', ), dict(type='mmkcr.RelaxedTopKGate', count=1))])
def test_supernet_and_subnet_of_both_encoders(sites, gates):
    model = scatter(search_model(moco(sites=sites, gates=gates)).double()).eval()
    subnet, structure = slim(model, input_shape=SHAPE)
    subnet.eval()
    images = torch.randn(3, *SHAPE).double()
    for supernet, sliced in ((model.architecture.backbone, subnet.backbone),
                             (model.architecture.momentum_encoder, subnet.momentum_encoder)):
        torch.testing.assert_close(sliced(images), supernet(images), rtol=1e-9, atol=1e-9)
    shares = [size / gate.total for size, gate in
              zip(structure.sizes().values(), model.gates().values())]
    assert min(shares) < 1
    assert structure.macs['subnet'] == count_macs(subnet, SHAPE) < structure.macs['dense']
    copied = sum(p.numel() for p in subnet.momentum_encoder.parameters())
    assert structure.params['subnet'] + copied == sum(p.numel() for p in subnet.parameters())
    # it trains on, and is what its structure builds
    train(subnet.train(), [[view.double() for view in views()]])
    MODELS.build(moco(sites=sites, structure=structure)).double().load_state_dict(
        subnet.state_dict())


def test_open_gates_train_as_the_dense_model():
    dense = scatter(MODELS.build(contrastive('MoCoV3', vit(stop_grad_conv1=True)))).train()
    supernet = search_model(moco(gates=GATES), price=dict(type='mmkcr.MacsPrice', weight=0.))
    missing, surplus = supernet.load_state_dict(dense.state_dict(), strict=False)
    assert not surplus and all('.gate.' in name or name == '_extra_state' for name in missing)
    for gate in supernet.train().gates().values():
        gate.alpha.data.fill_(1e4)
    batches = [views() for _ in range(3)]
    expected = train(dense, batches)
    assert len(set(expected)) == 3
    assert train(supernet, batches) == pytest.approx(expected, rel=1e-5)
    for name, value in dense.momentum_encoder.state_dict().items():
        torch.testing.assert_close(
            supernet.architecture.momentum_encoder.state_dict()[name], value, msg=name)


def test_the_copy_has_the_channels_of_the_online_network():
    """In every forward: same noise, same alphas, whatever the average of the alphas is."""
    model = scatter(search_model(moco(gates=GATES))).train()
    online = search_space(model)
    copied = search_space(model.architecture.momentum_encoder)
    assert copied.host is not online.host

    def watch(space, seen):
        for path in (f'layers.{i}.ffn.layers.0.0' for i in range(2)):
            space.host.get_submodule(path).register_forward_pre_hook(
                lambda _, args: seen.append(args[0].detach().abs().sum((0, 1)) > 1e-4))

    seen, followed = [], []
    for gate in online.gates().values():  # at this temperature a mask is a step
        gate.temperature = 1e-3
    model.macs_model(SHAPE)  # which runs the online backbone
    watch(online, seen), watch(copied, followed)
    batches = [views() for _ in range(3)]
    for batch in batches:
        train(model, [batch])
        for gate in online.gates().values():
            gate.alpha.data.add_(torch.randn(WIDTH))
    assert len(seen) == len(followed) == 12
    assert all(torch.equal(one, other) for one, other in zip(seen, followed))
    assert 3 <= len({tuple(mask.tolist()) for mask in seen})  # other ones in every step
    for name, gate in online.gates().items():
        assert not torch.equal(gate.alpha, copied.gates()[name].alpha)
    other = copy.deepcopy(model)  # its copy follows its own gates
    for gate in other.gates().values():
        gate.alpha.data.fill_(1e4)
    masks = [gate().sum() for gate in
             search_space(other.architecture.momentum_encoder).gates().values()]
    assert masks == [WIDTH, WIDTH]
    assert all(gate().sum() < WIDTH for gate in copied.gates().values())


def test_copies_can_be_held():
    model = scatter(search_model(moco(gates=GATES))).train()
    copied, = momentum_copies(model)
    before = copy.deepcopy(copied.state_dict())
    with hold_copies(model):
        model(views(), mode='loss')
    after = copied.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items()
               if 'running' not in name and 'num_batches' not in name)
    model(views(), mode='loss')
    assert int(copied.steps) == 2
    copied.steps.zero_()
    model.architecture.backbone.cls_token.data.fill_(3.)
    with hold_copies(model):  # the first time it becomes the online network
        model(views(), mode='loss')
    assert int(copied.steps) == 0 and bool((copied.module[0].cls_token == 3).all())


def test_the_term_sees_all_views_in_the_online_network():
    kcr = dict(kcr=dict(type='mmkcr.KernelComplexityLoss', weight=1.))
    model = scatter(search_model(moco(gates=GATES), regularizers=kcr)).train()
    assert model.regularizers.kcr.num_features == WIDTH
    basis = torch.linalg.qr(torch.randn(WIDTH, 5))[0]
    model.regularizers.kcr.set_basis(basis)
    pair = views()
    model.macs_model(SHAPE)
    with FeatureTap(model, 'backbone', every=True) as tap:
        losses = model(pair, mode='loss')
    assert tap.features.shape == (12, WIDTH)
    features = torch.cat([model.architecture.backbone(view)[0] for view in pair])
    torch.testing.assert_close(tap.features, features)
    residual = (features - features @ basis @ basis.T).square().sum() / 12
    torch.testing.assert_close(losses['loss_kcr'], residual)
    total, logs = model.parse_losses(losses)
    assert logs['loss'] == total != logs['loss_task'] == losses['loss']


# ---- other hosts -------------------------------------------------------------------------------


@pytest.mark.parametrize('host', ['BYOL', 'SimCLR'])
def test_other_contrastive_hosts(host):
    model = scatter(search_model(contrastive(host, searchable(vit(), gates=GATES)))).train()
    assert len(train(model, [views() for _ in range(2)])) == 2
    subnet, _ = slim(model, input_shape=SHAPE)
    images = torch.randn(2, *SHAPE)
    torch.testing.assert_close(subnet.eval()(images), model.eval()(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('host, layer', [('MAE', 'backbone.ln1'), ('SimMIM', 'backbone')])
def test_masked_image_modelling(host, layer):
    """The whole image is counted, not the patches that the encoder happens to see."""
    kcr = dict(kcr=dict(type='mmkcr.KernelComplexityLoss'))
    model = scatter(search_model(masked(host, gates=GATES), regularizers=kcr,
                                 feature_layer=layer)).train()
    term = model.regularizers.kcr
    assert term.num_features == 32
    term.set_basis(torch.eye(32)[:, :7])
    images = torch.randn(4, *SHAPE)
    from mmpretrain.structures import DataSample
    samples = [DataSample(mask=(torch.rand(8, 8) > 0.5).long()) for _ in range(4)]
    losses = model(images, samples, mode='loss')
    assert losses['loss_kcr'] > 0
    model.parse_losses(losses)[0].backward()
    subnet, structure = slim(model, input_shape=SHAPE)
    torch.testing.assert_close(subnet.eval()(images), model.eval()(images), rtol=1e-4, atol=1e-4)
    assert structure.macs['backbone'] == structure.macs['subnet'] == count_macs(subnet, SHAPE)


def test_a_classifier_takes_the_structure_and_the_backbone(tmp_path):
    model = scatter(search_model(moco(gates=GATES)))
    subnet, structure = slim(model, input_shape=SHAPE)
    file = str(tmp_path / 'moco.pth')
    torch.save(dict(state_dict=subnet.state_dict()), file)
    init = dict(type='Pretrained', checkpoint=file, prefix='backbone.')
    for backbone in (vit(frozen_stages=2, norm_eval=True, init_cfg=init),
                     vit('VisionTransformer', init_cfg=init)):
        classifier = MODELS.build(dict(
            type='mmpretrain.ImageClassifier', backbone=searchable(backbone, structure=structure),
            head=dict(type='VisionTransformerClsHead', num_classes=10, in_channels=WIDTH)))
        classifier.init_weights()
        classifier.train()
        images = torch.randn(2, *SHAPE)
        torch.testing.assert_close(classifier.backbone(images), subnet.eval().backbone(images))
        trained = {name.split('.')[0] for name, p in classifier.named_parameters()
                   if p.requires_grad}
        assert trained == ({'head'} if backbone['type'] == 'mmpretrain.MoCoV3ViT'
                           else {'backbone', 'head'})


# ---- bad input ---------------------------------------------------------------------------------


def test_terms_of_labels_are_refused():
    bottleneck = dict(ib=dict(type='mmkcr.InformationBottleneckLoss', num_classes=10))
    model = search_model(moco(gates=GATES), regularizers=bottleneck)
    with pytest.raises(ValueError, match='several views of an image, found `ib`'):
        model(views(), mode='loss')


def test_gates_that_slice_are_refused():
    with pytest.raises(ValueError, match='momentum copy, found some that slice'):
        search_model(moco(sites=['mlp_hidden'], gates=dict(type='mmkcr.BiMaskGate')))


def test_indices_are_no_features():
    kcr = dict(kcr=dict(type='mmkcr.KernelComplexityLoss', num_features=32))
    model = search_model(masked('MAE', gates=GATES), regularizers=kcr).train()
    with pytest.raises(TypeError, match='of `torch.int64`: name the layer'):
        model(torch.randn(2, *SHAPE), [], mode='loss')


def test_a_second_backbone_that_is_no_average_is_refused():
    twins = nn.Sequential(*(MODELS.build(searchable(vit(), gates=GATES)) for _ in range(2)))
    with pytest.raises(ValueError, match='one searchable backbone .* found 2 .copies in an '
                                         '`ExponentialMovingAverage`'):
        search_space(twins)
