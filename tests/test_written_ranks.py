"""Written plans of several GPUs, executed by as many processes on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vitmem.advice.files import Folder, write_plan

pytest.importorskip("transformers")

from written import OFFLINE, planned, settings_in

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
RANK = str(Path(__file__).with_name("written_rank.py"))


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"hf": "vit"}, {"hf": "swin", "reshard_after_forward": False}, {}], ids=str)
def test_two_processes_train_with_fsdp(tmp_path: Path, given: dict[str, Any]) -> None:
    plan = planned(**settings_in(tmp_path, {"gpus": 2, "parallel": "fsdp", "precision": "bf16", **given}))
    write_plan(plan, "8GiB", Folder(tmp_path / "out", force=False))
    done = subprocess.run(
        [*LAUNCH, RANK, "fsdp", str(tmp_path / "out" / "train.py"), "--max_steps", "2"],
        env={**OFFLINE, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'train_runtime'" in done.stdout


@pytest.mark.slow
def test_accelerate_reads_the_configuration_of_fsdp(tmp_path: Path) -> None:
    from accelerate.commands.config import load_config_from_file

    write_plan(planned(parallel="fsdp", gpus=2, offload="all"), "8GiB", Folder(tmp_path / "out", force=False))
    config = load_config_from_file(str(tmp_path / "out" / "accelerate.yaml"))
    assert (config.distributed_type, config.num_processes) == ("FSDP", 2)
    assert config.fsdp_config["fsdp_offload_params"] is True


@pytest.mark.slow
def test_two_processes_run_the_plain_loop(tmp_path: Path) -> None:
    """DistributedDataParallel with accumulation, the last update of which has fewer micro-steps."""
    given = {"hf": "vit", "loop": "plain", "gpus": 2, "accum": 3, "ema": True, "precision": "fp32", "train_samples": 20}
    write_plan(planned(**settings_in(tmp_path, given)), "8GiB", Folder(tmp_path / "out", force=False))
    done = subprocess.run(
        [*LAUNCH, RANK, "ddp", str(tmp_path / "out" / "train.py"), "--epochs", "1"],
        env={**OFFLINE, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("evaluation: loss") == 2  # two processes may write into one line
    assert (tmp_path / "out" / "model.pt").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "more"), [(1, {"ema": True}), (2, {"train": "lora"}), (3, {})])
def test_two_processes_train_with_the_deepspeed_file(tmp_path: Path, stage: int, more: dict[str, Any]) -> None:
    pytest.importorskip("deepspeed")
    zero = {"stage": stage, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
    given = settings_in(tmp_path, {"hf": "vit", "gpus": 2, "precision": "bf16", **more})
    plan = planned(**given, deepspeed={"zero_optimization": {**zero, "stage3_param_persistence_threshold": "auto"}})
    write_plan(plan, "8GiB", Folder(tmp_path / "out", force=False))
    done = subprocess.run(
        [*LAUNCH, RANK, "deepspeed", str(tmp_path / "out" / "train.py"), "--max_steps", "2"],
        env={**OFFLINE, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'train_runtime'" in done.stdout
