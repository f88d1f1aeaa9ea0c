#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A random Llama of Hugging Face, fine-tuned on a text: python examples/python/tune_torch.py [TEXT [STEPS]]

Its attention, masks and gradients are libejkernel's; texts are of several lengths, padded at their ends.
"""

import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import libejkernel.transformers  # noqa: F401, registers "ejkernel"

TEXT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "bytelm", "prompt.txt")


def create(attention="ejkernel"):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config)


def batch(text, draw, count=8, length=64):
    """Pieces of a text: bytes, 1 where there are any, and labels, which are -100 elsewhere."""
    ids, mask = torch.zeros(2, count, length, dtype=torch.long)
    for row, seen in zip(ids, mask):
        size = int(torch.randint(length // 2, length + 1, (1,), generator=draw))
        start = int(torch.randint(len(text) - size, (1,), generator=draw))
        row[:size] = torch.frombuffer(bytearray(text[start : start + size]), dtype=torch.uint8)
        seen[:size] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def fit(model, text, steps, report=lambda count, value: None):
    """The losses of the steps, nats a byte."""
    draw, values = torch.Generator().manual_seed(1), []
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for count in range(1, steps + 1):
        loss = model(**batch(text, draw)).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values.append(loss.item())
        report(count, values[-1])
    return values


def main():
    with open(sys.argv[1] if sys.argv[1:] else TEXT, "rb") as file:
        text = file.read()
    model = create()
    print("step, nats a byte")
    steps = int(sys.argv[2]) if sys.argv[2:] else 200
    fit(model, text, steps, lambda n, value: n % 20 or print(f"{n:4d}  {value:.3f}"))
    prompt = torch.tensor([list(b"def ")])
    written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=60, do_sample=False)
    print(bytes(written[0].tolist()).decode(errors="replace"))


if __name__ == "__main__":
    main()
