"""Names of the files of a compressed network, in the folder that holds them."""

#: Kept units, provenance and counts.
STRUCTURE = 'structure.json'
#: Weights that :func:`mmkcr.apis.saved.save` writes, of the bare network.
WEIGHTS = 'model.safetensors'
#: Weights that commands write: a checkpoint of the task model with its metadata.
SUBNET = 'subnet.pth'
#: Sizes, agreement, versions, and the SHA-256 of the other files.
REPORT = 'report.json'
#: How a dense network of timm or transformers is built.
HUB_CONFIG = 'config.json'
#: Config of the compressed task model of an OpenMMLab library.
CONFIG = 'config.py'
#: Config of the dense network that teaches in a fine-tuning, and config of the fine-tuning.
TEACHER, FINETUNE = 'dense.py', 'finetune.py'
