"""A small UNet of diffusers: training on noise, then a pipeline that makes images."""

import diffusers
import torch

import framework_truth as truth


def main():
    model = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).cuda()
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        images = torch.rand(2, 3, 16, 16, device="cuda")
        noise = torch.randn_like(images)
        times = torch.randint(50, (2,))
        noisy = scheduler.add_noise(images, noise, times)
        loss = torch.nn.functional.mse_loss(model(noisy, times.cuda()).sample, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        truth.iteration()
    pipeline = diffusers.DDPMPipeline(model, scheduler)
    pipeline.set_progress_bar_config(disable=True)
    images = pipeline(batch_size=1, num_inference_steps=3, output_type="np").images
    truth.point("made an image")
    del images


if __name__ == "__main__":
    truth.run(main, packages=["diffusers"])
