"""Write foundation models with random weights to a folder, as their packages save them:
`tiny_models.py FOLDER`.

Runs in an environment that has the packages. All are tiny but TimesFM, whose package knows one size
(200 M weights).
"""

import sys
from pathlib import Path

QUANTILES = [tenth / 10 for tenth in range(1, 10)]


def save_chronos(folder):
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    config = T5Config(
        architectures=["ChronosBoltModelForForecasting"],
        chronos_pipeline_class="ChronosBoltPipeline",
        chronos_config={
            "context_length": 256,
            "prediction_length": 16,
            "input_patch_size": 16,
            "input_patch_stride": 16,
            "quantiles": QUANTILES,
            "use_reg_token": True,
        },
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_decoder_layers=1,
        num_heads=2,
        vocab_size=2,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    ChronosBoltModelForForecasting(config).save_pretrained(folder)


def save_chronos2(folder):
    from chronos.chronos2.config import Chronos2CoreConfig
    from chronos.chronos2.model import Chronos2Model

    config = Chronos2CoreConfig(
        architectures=["Chronos2Model"],
        chronos_pipeline_class="Chronos2Pipeline",
        chronos_config={
            "context_length": 256,
            "input_patch_size": 16,
            "input_patch_stride": 16,
            "output_patch_size": 16,
            "max_output_patches": 4,
            "quantiles": [0.05, *QUANTILES, 0.95],
            "use_reg_token": True,
            "use_arcsinh": True,
        },
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
    )
    Chronos2Model(config).save_pretrained(folder)


def save_timesfm(folder):
    from timesfm import TimesFM_2p5_200M_torch

    TimesFM_2p5_200M_torch(torch_compile=False).save_pretrained(folder)


def save_tirex(folder):
    import torch
    from tirex import TiRexZero

    block = {"embedding_dim": 16, "num_heads": 2, "num_blocks": 1, "ffn_proj_factor": 2}
    sizes = {"input_patch_size": 8, "output_patch_size": 8, "input_ff_dim": 16}
    given = {
        "model_config": {**sizes, "quantiles": QUANTILES, "block_kwargs": block},
        "train_ctx_len": 64,
    }
    folder.mkdir()
    state = TiRexZero("torch", **given).state_dict()
    torch.save({"state_dict": state, "hyper_parameters": given}, folder / "model.ckpt")


if __name__ == "__main__":
    import torch

    torch.manual_seed(1)
    for save in (save_chronos, save_chronos2, save_timesfm, save_tirex):
        save(Path(sys.argv[1]) / save.__name__.removeprefix("save_"))
