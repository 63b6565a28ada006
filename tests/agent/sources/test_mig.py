"""What MIG instances are worth: the dominant share of compute and memory, and never more than the
device.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.exporters import read as parse
from gpuledger_common.mig import fit_shares, measured_share, profile_share
from gpuledger_common.readings import WHOLE_GPU, Accelerator

MIB = 1024**2
SEVENTH = WHOLE_GPU // 7


@pytest.mark.parametrize(
    ("profile", "model", "share"),
    [
        ("1g.5gb", "NVIDIA A100-SXM4-40GB", SEVENTH),
        ("1g.10gb", "NVIDIA A100-SXM4-40GB", 250_000),
        ("3g.20gb", "NVIDIA A100-SXM4-40GB", 500_000),
        ("4g.20gb", "NVIDIA A100-SXM4-40GB", 4 * WHOLE_GPU // 7),
        ("7g.80gb", "NVIDIA H100 80GB HBM3", WHOLE_GPU),
        ("1g.10gb+me", "NVIDIA H100 80GB HBM3", SEVENTH),
        ("1g.18gb", "NVIDIA H200", SEVENTH),
        ("3g.71gb", "NVIDIA H200", 500_000),
        ("3g.47gb", "NVIDIA H100 NVL", 500_000),
        ("1g.12gb", "NVIDIA GH200 480GB", SEVENTH),
        ("1g.6gb", "NVIDIA A30", 250_000),
        ("2g.12gb", "NVIDIA A30", 500_000),
        ("1c.3g.40gb", "NVIDIA H100 80GB HBM3", 166_666),
        ("2g.10gb", "a card that nobody knows", 2 * WHOLE_GPU // 7),
        ("whole", "NVIDIA H200", None),
    ],
)
def test_a_profile_has_its_dominant_share(profile, model, share):
    """max(compute slices / 7, memory slices / 8), by the profile's name and the card's; no profile,
    no share.
    """
    assert profile_share(profile, model) == share


@pytest.mark.parametrize(
    ("compute", "slices", "mib", "device_mib", "share"),
    [
        (1, 1, 4864, 40960, SEVENTH),
        (2, 2, 9856, 40960, 2 * WHOLE_GPU // 7),
        (3, 3, 19968, 40960, 500_000),
        (1, 1, 16384, 143771, SEVENTH),
        (3, 3, 69632, 143771, 500_000),
        (1, 3, 40448, 81559, 166_666),
        (7, 7, 81559, 81559, WHOLE_GPU),
    ],
)
def test_what_nvml_measures_gives_the_same_share(compute, slices, mib, device_mib, share):
    """Memory as the driver tells it, a little under the profile's, counts in whole slices."""
    assert measured_share(compute, slices, mib * MIB, "NVIDIA A100", device_mib * MIB) == share


@given(
    st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**40), st.none() | st.integers(1, 2**40)
)
def test_no_instance_is_worth_nothing_or_more_than_its_device(compute, slices, memory, device):
    """Whatever a driver says, a share lies in 1..1,000,000."""
    assert 0 < measured_share(compute, slices, memory, "NVIDIA H100", device) <= WHOLE_GPU


shares = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, WHOLE_GPU), st.booleans()))


@given(shares)
def test_the_instances_of_a_board_are_never_more_than_the_board(made):
    """Exactly the board where they came to more, in proportion to the micro-GPU; else they stay as
    they were.
    """
    given_ones = [
        Accelerator(
            f"{board}/{place}", board, 0, "H100", f"1g/{place}" if instance else None, share
        )
        for place, (board, share, instance) in enumerate(made)
    ]
    found = fit_shares(given_ones)
    for board in ("a", "b"):
        before = [one for one in given_ones if one.device_uuid == board and one.mig_instance]
        after = [one for one in found if one.device_uuid == board and one.mig_instance]
        whole = sum(one.gpu_micro for one in before)
        assert sum(one.gpu_micro for one in after) == min(whole, WHOLE_GPU)
        for old, new in zip(before, after, strict=True):
            assert abs(new.gpu_micro * max(whole, WHOLE_GPU) - old.gpu_micro * WHOLE_GPU) <= max(
                whole, WHOLE_GPU
            )
    assert [one.uuid for one in found] == [one.uuid for one in given_ones]
    assert [one for one in found if one.mig_instance is None] == [
        one for one in given_ones if one.mig_instance is None
    ]


def test_a_page_with_a_full_board_is_one_board():
    """4g and 3g of an H100 hold all of its memory and 7/7 of its compute: 4/7 and 1/2, which come
    to more than it.
    """
    page = "".join(
        f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",UUID="GPU-m",modelName="NVIDIA H100 80GB HBM3",'
        f'GPU_I_PROFILE="{profile}",GPU_I_ID="{number}"}} 0.5\n'
        for number, profile in ((1, "4g.40gb"), (2, "3g.40gb"))
    )
    found = {name: one.accelerator.gpu_micro for name, one in parse(page).accelerators.items()}
    assert found == {"GPU-m/1": 533_333, "GPU-m/2": 466_667}
