"""timm's train.py without its options: a folder of images, prefetching, mixup, AMP with a scaler, EMA, validation."""

import sys
from pathlib import Path

import torch
from PIL import Image
from timm import create_model, utils
from timm.data import Mixup, create_dataset, create_loader
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2

root = Path(sys.argv[1])
for split in ("train", "validation"):
    for index in range(8):
        folder = root / split / f"class{index % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (index * 20, 10, 10)).save(folder / f"{index}.png")
device = torch.device("cuda")
model = create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=2, drop_path_rate=0.1).to(device)
ema = utils.ModelEmaV3(model)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler, num_epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=2)
scaler, mixup = utils.NativeScaler(), Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=2)
loaders = {
    split: create_loader(
        create_dataset("", root=str(root), split=split, is_training=split == "train"),
        input_size=(3, 32, 32),
        batch_size=4,
        is_training=split == "train",
        num_workers=1,
        device=device,
    )
    for split in ("train", "validation")
}
saver = utils.CheckpointSaver(model=model, optimizer=optimizer, amp_scaler=scaler, checkpoint_dir=str(root))
for epoch in range(2):
    model.train()
    losses = utils.AverageMeter()
    for batch in loaders["train"]:
        images, target = mixup(*batch)
        with torch.autocast("cuda"):
            loss = SoftTargetCrossEntropy()(model(images), target)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        ema.update(model)
        losses.update(loss.item(), images.size(0))
    model.eval()
    top1 = utils.AverageMeter()
    with torch.no_grad():
        for images, target in loaders["validation"]:
            with torch.autocast("cuda"):
                (acc1,) = utils.accuracy(model(images), target, topk=(1,))
            torch.cuda.synchronize()
            top1.update(acc1.item(), target.size(0))
    scheduler.step(epoch + 1, top1.avg)
    best, _ = saver.save_checkpoint(epoch, metric=top1.avg)
    print("epoch", epoch, "loss", losses.avg, "top1", top1.avg, "best", best)
