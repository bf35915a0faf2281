"""The test of ``x/y.py`` is ``tests/test_x/test_y.py``, or here stands why not and where."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / 'mmkcr', ROOT / 'tests'
#: Folders whose tests are about no module of the package, with their subject.
OTHER_SUBJECTS = dict(
    test_tools='commands and tools, run as a user runs them', test_lab='the laboratory',
    test_configs='shipped configs', test_project='code, pages and the wheel as a whole',
    test_end_to_end='the whole way of a user', faults='kills and damaged files', slurm='clusters')
#: Files in the folder of a package whose property is of many modules, with the property.
PROPERTIES = {
    'test_apis/test_defaults.py': 'defaults listen to images and weights',
    'test_apis/test_ordinary.py': 'a subnet is as ordinary as its dense network',
    'test_apis/test_wrong_numbers.py': 'refusals of values that cannot be',
    'test_closed_form/test_memory.py': 'a limit of memory changes no result',
    'test_closed_form/test_refit_structure.py': 'a known structure is refitted',
    'test_deploy/test_shipped_graphs.py': 'graphs of shipped networks',
    'test_engine/test_distributed.py': 'two processes are one',
    'test_engine/test_search_schedule.py': 'the published schedule of a search',
    'test_engine/test_self_supervised_runs.py': 'self-supervised runs resume exactly',
    'test_engine/test_toy_runs.py': 'other batch sizes, signals, best weights',
    'test_methods/test_dcs/test_bottleneck.py': 'one pass over a data set, of bounded memory',
    'test_methods/test_dwconv/test_dsp.py': 'operators in place of heads in a segmentor',
    'test_methods/test_search/test_feature_distillation.py': 'distances of maps against NumPy',
    'test_methods/test_search/test_latency_price.py': 'a search to a target of time',
    'test_methods/test_search/test_search_masks.py': 'masks inside the search wrapper',
    'test_models/test_backbones/test_dcs_law.py': 'law of masked and sliced networks',
    'test_models/test_backbones/test_foundation_checkpoints.py': "files in their authors' names",
    'test_models/test_backbones/test_layout.py': 'layout of maps',
    'test_models/test_backbones/test_output_norms.py': 'norms behind the last block',
    'test_models/test_detector_searches.py': 'law of searches in detectors',
    'test_models/test_detectors.py': "the host's detectors bit for bit",
    'test_models/test_segmentors/test_encoder_decoder.py': "the host's segmentors bit for bit",
    'test_models/test_sites/test_host_options.py': "law with the hosts' options",
    'test_models/test_sites/test_plain.py': 'tools take a subnet as they take its host',
    'test_models/test_sites/test_transformers.py': 'law for networks of transformers',
    'test_models/test_whole/test_whole_law.py': 'law for whole detectors and segmentors'}
#: Modules without a file of their own, by the file that tests them. Tests in ``test_engine`` share
#: the processes that its ``conftest.py`` prepares for runs of a real Runner.
ELSEWHERE = {
    'test_cli/test_console.py': ['cli/command.py'],
    'test_cli/test_names.py': ['cli/compress.py', 'cli/frontier.py'],
    'test_closed_form/test_calibration.py': ['closed_form/readers.py'],
    'test_closed_form/test_compression.py': ['closed_form/options.py'],
    'test_closed_form/test_images.py': ['closed_form/image_folder.py'],
    'test_closed_form/test_processes.py': ['core/processes.py'],
    'test_closed_form/test_profiles.py': ['closed_form/units.py'],
    'test_configs/test_dcs_configs.py': ['models/heads/ssd_head.py'],
    'test_core/test_latency.py': ['core/cost.py'],
    'test_datasets/test_class_subset.py': ['datasets/part.py'],
    'test_datasets/test_label_check.py': ['datasets/data_check.py'],
    'test_deploy/test_frontier.py': ['deploy/frontier_files.py'],
    'test_deploy/test_missing_operators.py': ['deploy/runtimes.py'],
    'test_distillation/test_run.py': ['distillation/*.py'],
    'test_engine/test_finite.py': ['engine/checks.py'],
    'test_engine/test_hooks/test_feature_tap_hook.py': ['methods/search/refresh.py'],
    'test_engine/test_hooks/test_information_bottleneck_hook.py': [
        'methods/dcs/information_bottleneck.py'],
    'test_engine/test_hooks/test_nystrom_refresh.py': ['methods/search/refresh.py'],
    'test_engine/test_hooks/test_progressive_pruning.py': ['methods/ofb/progressive_pruning.py'],
    'test_engine/test_hooks/test_pruning_to_a_time.py': ['methods/ofb/progressive_pruning.py'],
    'test_engine/test_hooks/test_temperature_decay.py': ['methods/search/schedules.py'],
    'test_engine/test_hooks/test_warmup_switch.py': ['methods/search/schedules.py'],
    'test_engine/test_loops/test_bilevel.py': ['methods/search/bilevel.py'],
    'test_engine/test_reproducible.py': ['engine/resume/batches.py'],
    'test_engine/test_validated_complexity.py': ['methods/kcr/metric.py'],
    'test_functional/test_pivots.py': ['functional/sweep.py'],
    'test_methods/test_dcs/test_masks.py': ['methods/dcs/qk_mask.py'],
    'test_methods/test_dcs/test_qk_mask.py': ['core/gate.py'],
    'test_methods/test_kcr/test_selfsup/test_moca.py': ['methods/kcr/selfsup/moca_heads.py'],
    'test_methods/test_search/test_self_supervised.py': ['models/tasks.py'],
    'test_methods/test_search/test_split.py': ['methods/search/bilevel.py'],
    'test_models/test_backbones/test_dwconv_vit.py': [
        'models/backbones/register_vit.py', 'models/head_choice.py'],
    'test_models/test_backbones/test_efficientvit.py': ['models/layers/lite_mla.py'],
    'test_models/test_backbones/test_law.py': [
        'methods/named.py', 'models/gating.py', 'models/search_space.py', 'models/searchable.py'],
    'test_models/test_backbones/test_ofb_law.py': ['models/slicing.py'],
    'test_models/test_layers/test_operator_attention.py': ['models/layers/head_operators.py'],
    'test_models/test_layers/test_selection.py': [
        'models/layers/norms.py', 'models/layers/plain.py'],
    'test_models/test_layers/test_sized_attention.py': ['models/layers/window_attention.py'],
    'test_models/test_layers/test_take_over.py': ['core/forward.py'],
    'test_models/test_loading.py': ['models/backbone_loading.py', 'models/strict_loading.py'],
    'test_models/test_sites/test_coverage.py': ['models/adapters/*.py', 'models/sites/*.py'],
    'test_models/test_sites/test_mlp_hidden.py': ['models/sites/mlps.py'],
    'test_models/test_sites/test_scaled_units.py': ['models/slicing.py'],
    'test_models/test_whole/test_compress_whole.py': ['closed_form/whole.py'],
    'test_models/test_whole/test_macs_by_part.py': ['models/counting.py', 'models/two_stage.py'],
    'test_apis/test_saved.py': ['core/saved_folder.py', 'models/drop_rates.py'],
    'test_project/test_light_import.py': [
        'lazy.py', 'registry.py', '*/registered.py'],
    'test_project/test_wheel.py': ['version.py', 'cli/zoo.py'],
    'test_tools/test_compress_pairs.py': ['cli/distil.py'],
    'test_tools/test_compress_tool.py': [
        'apis/compress_files.py', '*/file_names.py', 'apis/file_options.py', 'cli/compress_*.py',
        'closed_form/progress.py'],
    'test_tools/test_export_tool.py': ['cli/export.py'],
    'test_tools/test_get_flops.py': ['cli/flops.py'],
    'test_tools/test_init.py': ['cli/init.py'],
    'test_tools/test_latency_table.py': ['cli/latency_table.py'],
    'test_tools/test_latency_tool.py': ['cli/latency.py'],
    'test_tools/test_retrained.py': ['apis/publish.py', 'cli/publish.py'],
    'test_tools/test_search_init.py': ['cli/search.py'],
    'test_tools/test_slim.py': ['cli/slim.py'],
    'test_tools/test_train_test.py': ['cli/test.py', 'cli/train.py', 'engine/processes.py']}
MODULES = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob('*.py'))
           if path.stem not in ('__init__', '__main__') and '.mim' not in path.parts]
FILES = [path.relative_to(TESTS) for path in sorted(TESTS.rglob('test_*.py'))]


def mirror(module: Path) -> Path:
    """The place of the test of a module."""
    return Path(*(f'test_{part}' for part in module.parts))


def test_every_module_has_a_test_in_its_place_or_here():
    elsewhere = {pattern for patterns in ELSEWHERE.values() for pattern in patterns}
    assert len(MODULES) > 100
    assert not [str(module) for module in MODULES if mirror(module) not in FILES
                and not any(module.match(pattern) for pattern in elsewhere)]


def test_every_test_stands_beside_its_module_or_here():
    places = {mirror(module) for module in MODULES}
    assert not [str(file) for file in FILES if file not in places
                and file.parts[0] not in OTHER_SUBJECTS
                and str(file) not in {*PROPERTIES, *ELSEWHERE}]


@pytest.mark.parametrize('file', [*PROPERTIES, *ELSEWHERE])
def test_the_list_is_of_what_is_there(file):
    patterns = ELSEWHERE.get(file, [])
    assert (TESTS / file).is_file() and not {file} & PROPERTIES.keys() & ELSEWHERE.keys()
    assert file not in PROPERTIES or Path(file) not in [mirror(module) for module in MODULES]
    for pattern in patterns:
        assert any(module.match(pattern) for module in MODULES), pattern
