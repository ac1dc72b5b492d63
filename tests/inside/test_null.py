"""The CUDA side of what is inside a training: a real Trainer and timm's loop on PyTorch's CUDA build without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vitmem.cli import main
from vitmem.errors import NotModelled
from vitmem.validate.null import build, torch_build

pytest.importorskip("torch")
pytest.importorskip("transformers")
try:
    build.libraries(torch_build.installed())
except NotModelled as reason:
    pytest.skip(str(reason), allow_module_level=True)

SCRIPT = """
import json, sys, torch, transformers
from vitmem.validate import MemoryCallback, preflight

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, place):
        return {"pixel_values": torch.zeros(3, 64, 64), "labels": place % 5}

config = transformers.ViTConfig(image_size=64, hidden_size=384, num_hidden_layers=4, num_attention_heads=6,
                                intermediate_size=1536, num_labels=5)
arguments = transformers.TrainingArguments(output_dir=sys.argv[1], num_train_epochs=2, per_device_train_batch_size=8,
                                           bf16=True, report_to=[], disable_tqdm=True, save_strategy="no")
trainer = transformers.Trainer(model=transformers.ViTForImageClassification(config), args=arguments,
                               train_dataset=Images())
estimate = preflight(trainer)
callback = MemoryCallback(trainer, estimate=estimate, layers=True)
trainer.add_callback(callback)
trainer.train()
with open(sys.argv[2], "w") as file:
    json.dump({"estimate": estimate.to_dict(), "report": callback.report.to_dict()}, file)
"""


def test_the_callback_reads_the_allocator_that_the_estimate_replays(tmp_path: Path) -> None:
    script, found = tmp_path / "train.py", tmp_path / "found.json"
    script.write_text(SCRIPT)
    line = ["null", "--gpu", "a100-40g", "--", "python", str(script), str(tmp_path / "out"), str(found)]
    assert main(line) == 0
    document = json.loads(found.read_text())
    estimate, report = document["estimate"], document["report"]
    assert estimate["verdict"]["gpu"] == "a100-40g"
    assert (report["figure"], report["num_steps"], report["leak"]) == ("allocated", 6, None)
    assert report["reserved_bytes"] == estimate["peak"]["reserved_bytes"]
    scalars = 2 * 512  # two more than the loop of the contract has
    assert report["peak_bytes"] == estimate["peak"]["allocated_bytes"] + scalars
    assert report["phases"]["backward"] == report["peak_bytes"]
    estimated = {name: phase["allocated_bytes"] for name, phase in estimate["phases"].items() if phase}
    assert report["phases"]["forward"] == estimated["forward"]
    assert report["phases"]["optimizer_step"] == estimated["first_step"]  # where the states are made
    assert report["comparison"]["limit_bytes"] == estimate["verdict"]["usable_bytes"]
    assert report["bottlenecks"][0] == "vit.layers.0"


LOOP = """
import json, sys, timm, torch
from vitmem.validate import watching

model = timm.create_model("vit_tiny_patch16_224", depth=2).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
kept = []
with watching(model, optimizer, bs=8, precision="bf16", optim="adamw_torch_fused", layers=True, gpu="a100-40g") as seen:
    for _ in range(14):
        images, labels = torch.zeros(8, 3, 224, 224, device="cuda"), torch.zeros(8, dtype=torch.int64, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(images)
            loss = torch.nn.functional.cross_entropy(out, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(out.detach().clone())
with open(sys.argv[1], "w") as file:
    json.dump(seen.report.to_dict(), file)
"""


@pytest.mark.slow
def test_a_plain_loop_is_watched_and_its_leak_is_found(tmp_path: Path) -> None:
    script, found = tmp_path / "train.py", tmp_path / "found.json"
    script.write_text(LOOP)
    assert main(["null", "--gpu", "a100-40g", "--", "python", str(script), str(found)]) == 0
    report = json.loads(found.read_text())
    assert report["leak"]["bytes_per_step"] == 16 << 10  # 8 x 1000 bf16 logits in blocks of 512
    assert {"forward", "backward", "optimizer_step", "between_steps"} == set(report["phases"])
    assert report["comparison"]["figure"] == "reserved"
    assert {"blocks.0", "blocks.1", "patch_embed"} <= set(report["layers"])
