"""GPU memory of models: published worked examples, and laws that no setting may break."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.insight.plans.architecture import (
    KNOWN,
    Architecture,
    assumed_from,
    published_shape,
)
from gpuledger_collector.insight.plans.hardware import GIB, GPUS, LINKS, gpu_named, link_named
from gpuledger_collector.insight.plans.memory import (
    FULL,
    MOMENT_BYTES,
    NONE,
    RECOMPUTE,
    SELECTIVE,
    TRAINING,
    WEIGHT_BYTES,
    InferenceSetup,
    TrainingSetup,
    activation_bytes,
    inference_fit,
    inference_need,
    kv_bytes_per_token,
    training_fit,
    training_need,
)

GPT3 = published_shape("gpt-3-175b")
LLAMA70 = published_shape("llama-2-70b")


def states(need):
    return need.weights_bytes + need.gradients_bytes + need.optimizer_bytes


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_parameters_of_published_models_are_exact(name, parameters):
    """The counts of the released checkpoints, to the last parameter."""
    assert published_shape(name).parameters == parameters


def test_gpt3_has_the_parameters_of_narayanan():
    """12 L h^2 (1 + 13/(12h) + (V+s)/(12Lh)), Narayanan et al.

    2021, eq. 2 (and the last norm's 2h).
    """
    layers, h, words, positions = 96, 12288, 50257, 2048
    expected = 12 * layers * h**2 * (1 + 13 / (12 * h) + (words + positions) / (12 * layers * h))
    assert GPT3.parameters == pytest.approx(expected + 2 * h, rel=1e-12)
    assert GPT3.parameters == pytest.approx(175e9, rel=0.005)


def test_adam_in_mixed_precision_takes_sixteen_bytes_a_parameter():
    """Rajbhandari et al. 2020, section 3.1: GPT-2 of 1.5 B parameters needs at least 24 GB."""
    run = TrainingSetup(assumed_from(1.5e9), 1.5e9, "fp16")
    assert states(training_need(run)) == 24e9


def test_the_example_of_the_zero_paper():
    """Figure 1 there: 7.5 B parameters on 64 GPUs hold 120, 31.4, 16.6 and 1.9 GB of states."""
    run = TrainingSetup(replace(assumed_from(7.5e9), layers=10**6), 7.5e9, "fp16", gpus=64)
    held = [states(training_need(replace(run, zero=stage))) / 1e9 for stage in range(4)]
    assert [round(one, 1) for one in held] == [120.0, 31.4, 16.6, 1.9]


def test_gpt3_needs_2800_gigabytes_of_states_and_does_not_fit_on_one_gpu():
    """175 B parameters at 16 bytes: 2.8 TB; eight-way tensor and eight-way pipeline leave 43.6 GB
    of states a GPU.
    """
    whole = TrainingSetup(GPT3, 175e9, "fp16")
    assert states(training_need(whole)) == 2.8e12
    split = replace(whole, gpus=64, tensor=8, pipeline=8)
    assert states(training_need(split)) == pytest.approx(43.75e9)
    assert not any(training_fit(whole, card).fits for card in GPUS)


def test_activations_of_gpt3_as_korthikanti_has_them():
    """Section 4: sbh L (10 + 24/t + 5as/(ht)) a GPU; 5as/h is 80 for GPT-3, which selective
    recomputation saves.

    The paper's 70 % of activation memory saved by it follows: 80 / (34 + 80).
    """
    run = TrainingSetup(
        GPT3, 175e9, "fp16", gpus=64, tensor=8, pipeline=8, sequence=2048, recompute=NONE
    )
    sbh, layers = 2048 * 12288, 96
    assert activation_bytes(run) == pytest.approx(sbh * layers * (10 + 24 / 8 + 80 / 8))
    parallel = replace(run, sequence_parallel=True)
    assert activation_bytes(parallel) == pytest.approx(sbh * layers * (34 / 8 + 80 / 8))
    selective = replace(parallel, recompute=SELECTIVE)
    assert activation_bytes(selective) == pytest.approx(sbh * layers * 34 / 8)
    assert 1 - activation_bytes(selective) / activation_bytes(parallel) == pytest.approx(80 / 114)
    everything = replace(run, recompute=FULL)
    assert activation_bytes(everything) == pytest.approx(sbh * (2 * layers + 10 + 24 / 8 + 80 / 8))


def test_kv_cache_of_llama_2_70b():
    """2 x 80 layers x 8 heads x 128 x 2 bytes: 320 KiB a token, 1.25 GiB for 4,096; an eighth of
    plain heads.
    """
    assert kv_bytes_per_token(LLAMA70, "bf16") == 327_680
    server = InferenceSetup(LLAMA70, LLAMA70.parameters, batch=1, sequence=4096)
    assert inference_need(server).kv_cache_bytes == 1.25 * GIB
    assert kv_bytes_per_token(replace(LLAMA70, kv_heads=64), "bf16") == 8 * 327_680
    assert kv_bytes_per_token(LLAMA70, "fp8") == 163_840


def test_llama_2_70b_in_bf16_needs_two_80_gb_cards():
    """Weights of 138 GB: one card of 80 GB is too few, two hold them with one sequence; one B200
    does.
    """
    server = InferenceSetup(LLAMA70, LLAMA70.parameters)
    fits = {card.name: inference_fit(server, card) for card in GPUS}
    assert (fits["H100"].fits, fits["H100"].fewest_gpus, fits["H100"].fewest_tensor) == (
        False,
        2,
        2,
    )
    assert (fits["B200"].fits, fits["B200"].fewest_gpus) == (True, 1)
    quantised = replace(server, precision="int4")
    assert inference_fit(quantised, gpu_named("A40")).fits


def test_a_model_that_never_fits_has_no_number():
    """Activations of a long sequence do not shrink with data-parallel ranks: unknown, not a large
    number.
    """
    run = TrainingSetup(LLAMA70, LLAMA70.parameters, zero=3, sequence=10**6)
    assert training_fit(run, gpu_named("T4")).fewest_gpus is None


shapes = st.builds(
    lambda layers, heads, group, size, gated: Architecture(
        layers, heads * group * size, heads * group, heads, 4 * heads * group * size, 32000, gated
    ),
    st.integers(1, 128),
    st.integers(1, 16),
    st.integers(1, 8),
    st.sampled_from((64, 128)),
    st.booleans(),
)
runs = st.builds(
    lambda shape, precision, optimizer, zero, ranks, tensor, batch, tokens, recompute, split: (
        TrainingSetup(
            shape,
            shape.parameters,
            precision,
            optimizer,
            zero,
            ranks * tensor,
            tensor,
            1,
            split,
            batch,
            tokens,
            recompute,
        )
    ),
    shapes,
    st.sampled_from(TRAINING),
    st.sampled_from(sorted(MOMENT_BYTES)),
    st.integers(0, 3),
    st.integers(1, 512),
    st.sampled_from((1, 2, 4, 8)),
    st.integers(1, 16),
    st.integers(1, 16384),
    st.sampled_from(RECOMPUTE),
    st.booleans(),
)
servers = st.builds(
    lambda shape, precision, kv, tensor, batch, sequence: InferenceSetup(
        shape, shape.parameters, precision, kv, tensor, 1, batch, sequence
    ),
    shapes,
    st.sampled_from(sorted(WEIGHT_BYTES)),
    st.sampled_from(sorted(WEIGHT_BYTES)),
    st.sampled_from((1, 2, 4, 8)),
    st.integers(1, 512),
    st.integers(1, 131072),
)


def close_to_at_most(lower, upper):
    return lower <= upper * (1 + 1e-12)


@given(runs)
def test_no_part_is_negative_and_stages_of_zero_only_save(run):
    """ZeRO 3 <= 2 <= 1 <= 0, with whatever else is chosen."""
    totals = []
    for stage in range(4):
        need = training_need(replace(run, zero=stage))
        assert (
            min(
                need.weights_bytes,
                need.gradients_bytes,
                need.optimizer_bytes,
                need.activations_bytes,
            )
            >= 0
        )
        totals.append(need.total_bytes)
    for more, less in pairwise(totals):
        assert close_to_at_most(less, more)


@given(runs, st.integers(2, 8))
def test_more_gpus_never_need_more_on_each(run, times):
    """More data-parallel ranks, more tensor-parallel GPUs: each GPU holds as much or less."""
    here = training_need(run).total_bytes
    assert close_to_at_most(training_need(replace(run, gpus=run.gpus * times)).total_bytes, here)
    wider = replace(run, tensor=run.tensor * times, gpus=run.gpus * times)
    assert close_to_at_most(training_need(wider).total_bytes, here)


@given(runs, st.floats(1, 100))
def test_more_parameters_and_longer_sequences_need_more(run, times):
    """Monotone in parameters, sequence and micro-batch; recomputing more of the same never costs
    memory.
    """
    here = training_need(run).total_bytes
    assert close_to_at_most(
        here, training_need(replace(run, parameters=run.parameters * times)).total_bytes
    )
    assert here < training_need(replace(run, sequence=run.sequence * 2)).total_bytes
    assert here < training_need(replace(run, micro_batch=run.micro_batch + 1)).total_bytes
    assert activation_bytes(replace(run, recompute=SELECTIVE)) <= activation_bytes(
        replace(run, recompute=NONE)
    )


@given(runs.map(lambda run: replace(run, fragmentation=0.0)), st.sampled_from(GPUS))
def test_the_fewest_gpus_fit_and_one_rank_less_does_not(run, card):
    """What `fewest_gpus` names does hold the run, and no fewer at that tensor size do."""
    fit = training_fit(run, card)
    if fit.fewest_gpus is None:
        assert not fit.fits
        return
    there = replace(run, tensor=fit.fewest_tensor, gpus=fit.fewest_gpus)
    assert training_need(there).total_bytes <= card.memory_bytes
    fewer = fit.fewest_gpus - fit.fewest_tensor
    if fewer:
        assert training_need(replace(there, gpus=fewer)).total_bytes > card.memory_bytes


@given(servers)
def test_servers_obey_the_same_laws(server):
    """More sequences need more, more GPUs never more on each, and the cache grows evenly with
    tokens.
    """
    need = inference_need(server)
    more = inference_need(replace(server, batch=server.batch * 2))
    assert more.kv_cache_bytes == pytest.approx(2 * need.kv_cache_bytes)
    assert more.total_bytes > need.total_bytes
    wider = inference_need(replace(server, tensor=server.tensor * 2))
    assert close_to_at_most(wider.total_bytes, need.total_bytes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "int4"}, "int4"),
        ({"zero": 4}, "not 4"),
        ({"gpus": 3, "tensor": 2}, "no multiple"),
        ({"sequence": 0}, "above 0"),
        ({"fragmentation": 1.0}, "share"),
        ({"pipeline": 200, "gpus": 200}, "80 layers"),
    ],
)
def test_questions_that_make_no_sense_are_refused(changes, said):
    """One sentence that names what is wrong."""
    with pytest.raises(ValueError, match=said):
        TrainingSetup(LLAMA70, LLAMA70.parameters, **changes)


def test_figures_are_ordered_named_once_and_sourced():
    """Cards from the smallest memory up; every link of a card is known; every figure names where it
    is from.
    """
    assert [card.memory_bytes for card in GPUS] == sorted(card.memory_bytes for card in GPUS)
    assert len({card.name.casefold() for card in GPUS}) == len(GPUS)
    assert all(link_named(card.link) in LINKS and card.source for card in GPUS)
    assert all(link.source and link.bytes_per_second > 1e9 for link in LINKS)


@given(st.floats(1e6, 1e13))
def test_an_assumed_shape_has_about_the_parameters_it_was_made_from(parameters):
    """Twelve L h squared is within a few percent from a billion on; below, whole heads and layers
    are coarse.
    """
    shape = assumed_from(parameters)
    body = 12 * shape.layers * shape.hidden**2
    assert body == pytest.approx(parameters, rel=0.05)


def test_the_published_shapes_are_near_their_names():
    """llama-2-70b has 70 B parameters, give or take two percent."""
    for name, shape in KNOWN.items():
        assert shape.parameters == pytest.approx(float(name.rsplit("-", 1)[1][:-1]) * 1e9, rel=0.05)
