"""``vitmem explain``: public messages of every wording, what they were, and no text that breaks it."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vitmem.cli import main
from vitmem.errors import NotModelled
from vitmem.explain import explain
from vitmem.explain.cause import CAUSES
from vitmem.explain.message import find_messages
from vitmem.explain.phase import NAMES
from vitmem.explain.symptoms import SYMPTOMS
from vitmem.units import GIB, MIB

#: (where it was posted, the message, its cause)
MESSAGES = [
    (
        "pytorch/pytorch#16417, torch 1.0",
        "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; "
        "9.28 GiB free; 4.68 MiB cached)",
        "refused",
    ),
    (
        "neurosim/DNN_NeuroSim_V1.3#28",
        "CUDA out of memory. Tried to allocate 1.12 MiB (GPU 0; 22.37 GiB total capacity; 15.87 GiB already allocated; "
        "3.56 MiB free; 787.74 MiB cached)",
        "refused",
    ),
    (
        "rshaojimmy/MADDoG#11",
        "CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity; 8.77 GiB already allocated; "
        "19.75 MiB free; 13.71 GiB reserved in total by PyTorch)",
        "fragmentation",
    ),
    (
        "2KangHo/vdsr_pytorch#2",
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.90 GiB total capacity; 13.13 GiB already allocated; "
        "115.88 MiB free; 14.80 GiB reserved in total by PyTorch)",
        "shortage",
    ),
    (
        "kerrj/lerf#73, torch 2.1",
        "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacty of 23.65 GiB of which 1.66 GiB is "
        "free. Including non-PyTorch memory, this process has 20.81 GiB memory in use. Of the allocated memory 12.09 "
        "GiB is allocated by PyTorch, and 4.84 GiB is reserved by PyTorch but unallocated.",
        "fragmentation",
    ),
    (
        "FoundationVision/GenerateU#10, in a container",
        "CUDA out of memory. Tried to allocate 696.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 235.06 MiB "
        "is free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by "
        "PyTorch, and 330.42 MiB is reserved by PyTorch but unallocated.",
        "shortage",
    ),
    (
        "two processes",
        "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 3 has a total capacity of 23.65 GiB of which 11.06 MiB "
        "is free. Process 77 has 20.00 GiB memory in use. Including non-PyTorch memory, this process has 3.60 GiB "
        "memory in use. Of the allocated memory 2.90 GiB is allocated by PyTorch, and 194.87 MiB is reserved by "
        "PyTorch but unallocated.",
        "other_processes",
    ),
    (
        "wxian3/NeuroLens#2",
        "CUDA out of memory. Tried to allocate 55.57 GiB. GPU 0 has a total capacty of 12.00 GiB of which 9.02 GiB is "
        "free. Of the allocated memory 984.52 MiB is allocated by PyTorch, and 463.48 MiB is reserved by PyTorch but "
        "unallocated.",
        "too_large",
    ),
    (
        "a fraction of the GPU, torch 1.8 to 2.0",
        "CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 23.69 GiB total capacity; 7.20 GiB already allocated; "
        "15.00 GiB free; 8.00 GiB allowed; 7.40 GiB reserved in total by PyTorch)",
        "limit",
    ),
    (
        "torch 2.14, libc10_cuda.so",
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
        "limit. Requested size: 2.00 GiB",
        "limit",
    ),
    ("no figures", "CUDA out of memory. Tried to allocate 2.00 GiB", "unknown"),
]


@pytest.mark.parametrize(("source", "text", "cause"), MESSAGES, ids=[row[0] for row in MESSAGES])
def test_a_message_of_any_age_is_read(source: str, text: str, cause: str) -> None:
    assert explain(text).cause == cause
    wrapped = text.replace(" of ", "\nof ").replace(" memory", "\n  memory")
    assert explain(f"torch.cuda.OutOfMemoryError: {wrapped}").cause == cause


def test_every_cause_has_a_message() -> None:
    assert {cause for _, _, cause in MESSAGES} == set(CAUSES)


def test_cached_is_what_is_not_allocated_and_reserved_is_both() -> None:
    (old,) = find_messages(MESSAGES[1][1])
    assert old.reserved_bytes == round(15.87 * GIB) + round(787.74 * MIB)
    (later,) = find_messages(MESSAGES[2][1])
    assert later.unallocated_bytes == round(13.71 * GIB) - round(8.77 * GIB)


def test_in_a_container_the_named_process_is_this_one() -> None:
    (message,) = find_messages(MESSAGES[5][1])
    assert message.others == ()
    assert message.process_bytes == round(14.52 * GIB)
    (two,) = find_messages(MESSAGES[6][1])
    assert two.others == ((77, 20 * GIB),)


TRACES = {
    "backward": ['File "a.py", line 3, in <module>\n    loss.backward()', "_engine_run_backward("],
    "forward": ['File "torch/nn/modules/linear.py", line 114, in forward', "return F.linear(input, self.weight)"],
    "recompute": ["loss.backward()", 'File "torch/utils/checkpoint.py", line 1, in unpack_hook', "return F.gelu(x)"],
    "clipping": ["self.accelerator.clip_grad_norm_(", "clip_grads_with_norm_("],
    "optimizer_step": ["self.optimizer.step()", 'File "torch/optim/adamw.py", line 1, in _init_group'],
    "evaluation": ["trainer.evaluate()", "output = eval_loop(", 'linear.py", line 1, in forward'],
    "evaluation_gathering": ['trainer.py", line 2515, in evaluation_loop', "nested_concat(preds_host, logits)"],
    "loading": ['state = torch.load("a.pt")', 'File "torch/serialization.py", line 1, in _rebuild_tensor'],
    "moving": ['model.to("cuda")', 'module.py", line 1, in convert', "return t.to("],
    "saving": ["self._save_checkpoint(model, trial)", "return torch.cat(parts)"],
    "wrapping": ["model = DistributedDataParallel(model)", "return torch.empty(size)"],
}


@pytest.mark.parametrize("phase", NAMES)
def test_the_traceback_tells_the_phase(phase: str) -> None:
    lines = "\n".join(f"[rank3]:     {line}" for line in TRACES[phase])
    text = f"loss 0.1 loss.backward( optimizer.step(\nTraceback (most recent call last):\n{lines}\n{MESSAGES[4][1]}"
    assert explain(text).phase == phase


SYMPTOM_LINES = {
    "shared_memory": "RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that",
    "host_killed_worker": "RuntimeError: DataLoader worker (pid 8544) is killed by signal: Killed.",
    "host_killed": "run.sh: line 3: 29066 Killed   python train.py",
    "host_allocation": "[enforce fail at alloc_cpu.cpp:73] . DefaultCPUAllocator: can't allocate memory: you tried to",
    "nccl": "node1:12:34 [0] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'",
    "cublas": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cudnn": "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
    "cuda": "THCudaCheck FAIL file=THCStorage.cu line=58 error=2 : out of memory",
}


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.kind)
def test_every_symptom_is_recognised_and_helped(symptom) -> None:  # type: ignore[no-untyped-def]
    found = explain(f"epoch 3\n{SYMPTOM_LINES[symptom.kind]}\n")
    assert (found.kind, found.where, found.evidence[0]) == (symptom.kind, symptom.where, 2)
    assert found.advice
    assert found.next


@pytest.mark.parametrize("line", ["OSError: [Errno 12] Cannot allocate memory", "MemoryError", "std::bad_alloc"])
def test_the_host_refuses_in_many_words(line: str) -> None:
    assert explain(line).kind == "host_allocation"


def test_the_first_message_is_the_one_explained() -> None:
    found = explain(f"{MESSAGES[4][1]}\n\n{MESSAGES[5][1]}")
    assert (found.num_messages, found.cause) == (2, "fragmentation")


@pytest.mark.parametrize("text", ["", "loss 0.3", "KeyError: 'pixel_values'", "skilled and Killed-in-a-sentence-not"])
def test_other_errors_are_not_explained(text: str) -> None:
    with pytest.raises(NotModelled, match="Traceback"):
        explain(text)


def test_the_command_reads_a_file_and_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "train.log"
    log.write_text(MESSAGES[2][1])
    assert main(["explain", str(log)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Fragmentation: 4.94 GiB are reserved and unused")
    assert "PYTORCH_ALLOC_CONF" in out
    assert "vitmem solve bs MODEL --memory 14.76GiB" in out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MESSAGES[6][1].encode())))
    assert main(["explain", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["figures"]["others"] == [{"pid": 77, "bytes": 20 * GIB}]
    assert document["next"][0] == "vitmem monitor --gpu 3"
    assert document["next"][1].endswith("--memory 3.65GiB")


@pytest.mark.parametrize(("content", "code"), [("all well", 4), (None, 2)])
def test_what_cannot_be_explained_has_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, code: int
) -> None:
    log = tmp_path / "train.log"
    if content is not None:
        log.write_text(content)
    assert main(["explain", str(log)]) == code
    assert capsys.readouterr().err.count("\n") == 1


WORDS = [
    *" ".join(text for _, text, _ in MESSAGES).split(),
    *SYMPTOM_LINES.values(),
    *itertools.chain(*TRACES.values()),
    "\n",
]
NUMBERS = st.decimals(min_value=0, max_value=10**15, places=2).map(str)
UNITS = st.sampled_from(["bytes", "KiB", "MiB", "GiB", "TiB", "ZiB"])
FRAGMENTS = st.one_of(st.sampled_from(WORDS), NUMBERS, UNITS, st.text(max_size=8))


@given(st.lists(FRAGMENTS, max_size=60).map(" ".join))
def test_no_text_breaks_it(text: str) -> None:
    try:
        document = explain(text).to_dict()
    except NotModelled:
        return
    json.dumps(document)
    assert document["summary"]


@given(st.sampled_from([text for _, text, _ in MESSAGES]), st.data())
def test_a_message_cut_anywhere_is_still_no_traceback(text: str, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(text)))
    cut = text[:begin] + data.draw(st.text(max_size=5)) + text[begin + data.draw(st.integers(0, 30)) :]
    try:
        explain(cut)
    except NotModelled:
        assert "CUDA out of memory. Tried to allocate 2.00 GiB" not in cut


@given(st.binary(max_size=300))
def test_bytes_that_are_no_text_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    log = tmp_path_factory.mktemp("log") / "log"
    log.write_bytes(content)
    assert main(["explain", str(log)]) in {0, 4}
