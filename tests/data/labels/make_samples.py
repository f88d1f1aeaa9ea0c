# SPDX-License-Identifier: Apache-2.0
"""Writes the samples of this folder: what JAX makes of a program with labels. See README.md."""

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

FLASH = "ejkernel_ops#flash_attention@v0:0123456789abcdef"
RING = "ejkernel_ops#ring.attn-x@v1.2:fedcba9876543210"
STAMP = ('ejkernel_ops:{"args":[{"dtype":"float32","shape":[4,8]}],"cfg":{"platform":"a\\"b\\\\}"},'
         '"kwargs":{"causal":true},"op_id":"flash_attention"}')


def program(query, key):
    with jax.named_scope(FLASH):
        scores = jnp.dot(query, key.T)
    with jax.named_scope(RING):
        scores = jnp.sin(scores)
    with jax.named_scope(STAMP):
        scores = jnp.cos(scores)
    with set_xla_metadata(ejkernel_label=FLASH):
        scores = jnp.exp(scores)
    return scores + 1


def write(name, text):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)


lowered = jax.jit(program).lower(jnp.ones((4, 8)), jnp.ones((4, 8)))
write("program.stablehlo.mlir", lowered.as_text(debug_info=True))
write("program.hlo.txt", lowered.as_text(dialect="hlo", debug_info=True))
write("program.compiled.hlo.txt", lowered.compile().as_text())
