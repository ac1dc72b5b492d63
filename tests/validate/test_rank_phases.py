"""What comes besides steady steps on several GPUs, between real processes: evaluation, resumed run, the last step."""

from __future__ import annotations

import pytest
from accelerate.data_loader import BatchSamplerShard
from ranks import VIT, played_on_cpu
from torch.utils.data import BatchSampler
from vitmem.phases import last_sizes
from vitmem.settings import TrainSettings
from vitmem.validate.distributed.launch import measure_ranks

ENGINES = ["ddp", "zero2"]


def asked(engine, **more):
    return {**VIT, "precision": "bf16", "parallel": engine, **more}


def document(engine):
    zero = {"stage": int(engine[-1]), "reduce_bucket_size": 1_000_000} if engine.startswith("zero") else None
    autos = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    return zero and {**dict.fromkeys(autos, "auto"), "bf16": {"enabled": "auto"}, "zero_optimization": zero}


def both(settings, engine, **request):
    wanted = document(engine)
    read = {"deepspeed": wanted} if wanted else {}
    return played_on_cpu(TrainSettings.of(**settings, **read)), measure_ranks(
        TrainSettings.of(**settings), deepspeed=wanted, **request
    )


@pytest.mark.parametrize(
    ("samples", "bs", "accum", "gpus"), [(100, 8, 1, 2), (100, 8, 3, 2), (64, 8, 2, 4), (7, 8, 2, 4), (1001, 16, 4, 8)]
)
def test_last_step_is_what_accelerates_loader_makes_of_it(samples, bs, accum, gpus):
    settings = TrainSettings(bs=bs, accum=accum, gpus=gpus, parallel="ddp", train_samples=samples)
    for rank in range(gpus):
        batches = BatchSampler(range(samples), bs, drop_last=False)
        sizes = tuple(len(batch) for batch in BatchSamplerShard(batches, gpus, rank))
        last = sizes[-(len(sizes) % accum or min(accum, len(sizes))) :]
        assert last_sizes(settings) == (() if last == (bs,) * accum else last)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*ENGINES, "zero1"])
@pytest.mark.parametrize("more", [{"eval_bs": 64}, {"eval_bs": 64, "eval_samples": 500}])
def test_an_evaluation_gathers_the_results_of_all_ranks(engine, more):
    settings = asked(engine, **more)
    samples = settings.get("eval_samples", 3 * 64 * 2)
    played, ranks = both(settings, engine, eval_samples=samples)
    peak = max(summary.tensor_peak.total_bytes for summary in played.evaluation)
    for rank in ranks:
        assert rank["peaks"]["evaluation"] == pytest.approx(peak, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_run_has_its_states_from_the_first_step_on(engine, tmp_path):
    settings = asked(engine)
    folder = {"output_dir": str(tmp_path)}
    saving = {**folder, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    played, first = both(settings, engine, arguments=saving)
    _, resumed = both(
        settings, engine, arguments={**folder, "max_steps": 7}, resume_from=str(tmp_path / "checkpoint-2")
    )
    for phases, ranks in ((played.first_step, first), (played.resumption, resumed)):
        estimated = max(summary.tensor_peak.total_bytes for summary in phases)
        assert estimated == pytest.approx(max(max(rank["first_step"].values()) for rank in ranks), rel=1e-4)
