# SPDX-License-Identifier: Apache-2.0
"""Masks: what they say is what calls hide."""

import libejkernel
import libejkernel.numpy as ejk
import numpy as np
import pytest
from libejkernel import CausalMask, ChunkedCausalMask, FullMask, LocalMask, MaskInfo, MultiHeadMask, NumpyMask

IDS = np.array([[0, 0, 0, 1, 1, 1, 1, -1], [0, 0, 1, 1, 2, 2, 2, 2]], np.int32)


def qkv(batch=2, t=8, heads=2):
    draw = np.random.default_rng(0)
    return [draw.standard_normal((batch, t, heads, 16)).astype(np.float32) for _ in range(3)]


def test_forms_of_mask_info():
    info = MaskInfo.from_segments(IDS)
    shared = (IDS[:, :, None] == IDS[:, None, :]) & (IDS >= 0)[:, :, None]
    assert info.shape == (2, 8, 8) and info.is_self_attention and info.heads == 1
    assert (info.attention_mask[:, 0] == shared).all()
    assert (info.q_segment_ids == IDS).all()
    causal = info.apply_causal()
    assert (causal.attention_mask[:, 0] == shared & np.tri(8, dtype=bool)).all()
    assert (causal.create_bias()[:, 0] == 0)[shared & np.tri(8, dtype=bool)].all()
    assert causal.get_or_compute_attention_mask("float32").dtype == np.float32
    assert "q_segment_ids=(2, 8)" in repr(info)
    masked = MaskInfo.from_attention_mask(shared)
    assert (masked.attention_mask[:, 0] == shared).all()
    window = info.apply_sliding_window((1, 0)).attention_mask[0, 0]
    assert window.sum() == 3 + 2 + 4 + 3
    assert info.apply_chunked(4).attention_mask.shape == (2, 1, 8, 8)
    assert MaskInfo.from_random(1, 4, seed=3).attention_mask.shape == (1, 1, 4, 4)
    assert info.get_or_compute_positions()[0][1].tolist() == [0, 1, 0, 1, 0, 1, 2, 3]
    with pytest.raises(libejkernel.InvalidArgument, match="mode is 'x'"):
        info.apply_sliding_window(3, mode="x")


def test_arrays_keep_their_object():
    elements = MaskInfo.from_segments(IDS).attention_mask
    assert elements.sum() == (9 + 16) + (4 + 4 + 16)
    assert not elements.flags.writeable


def takers():
    from libejkernel._description import catalogue

    names = [n for n in libejkernel.operations() if catalogue()[n].takes_mask_info and not catalogue()[n].forward]
    assert names
    return names


@pytest.mark.parametrize("name", takers())
def test_calls_hide_what_a_mask_info_hides(name):
    from libejkernel._description import catalogue

    heads_first = catalogue()[name].args.orders.startswith("bhtd")
    q, k, v = (x.swapaxes(1, 2).copy() if heads_first else x for x in qkv())
    function = getattr(ejk, name)
    for info in (
        MaskInfo.from_segments(IDS),
        MaskInfo.from_segments(IDS).apply_causal(),
        MaskInfo.from_segments(IDS).apply_sliding_window((2, 1)),
        MaskInfo.from_random(2, 8, seed=1),
    ):
        expected = function(q, k, v, attention_mask=info.attention_mask)
        assert np.abs(function(q, k, v, mask_info=info) - expected).max() < 1e-6
    more = function(q, k, v, mask_info=MaskInfo.from_segments(IDS), causal=True)
    both = MaskInfo.from_segments(IDS).apply_causal()
    assert np.abs(more - function(q, k, v, mask_info=both)).max() < 1e-6
    with pytest.raises(libejkernel.InvalidArgument, match="attention_mask and mask_info are given"):
        function(q, k, v, mask_info=both, attention_mask=both.attention_mask)


def test_masks_as_objects():
    causal, local = CausalMask((8, 8)), LocalMask((8, 8), (2, None))
    assert (causal[:] == np.tri(8, dtype=bool)).all()
    assert (causal & local)[4].tolist() == [False, False, True, True, True, False, False, False]
    assert (~causal)[0, 7] and not (~causal)[7, 0]
    assert (causal | ~causal)[2:4, 3:].all()
    assert causal == CausalMask((8, 8)) and causal != local and hash(causal) == hash(CausalMask((8, 8)))
    assert ChunkedCausalMask((8, 8), 4)[5].tolist() == [False] * 4 + [True, True, False, False]
    heads = MultiHeadMask([causal, FullMask((8, 8))])
    assert heads.shape == (2, 8, 8) and heads.kind == "multi_head"
    assert (NumpyMask(causal[:])[:] == causal[:]).all()
    assert MaskInfo.from_mask(heads, 3).attention_mask.shape == (3, 2, 8, 8)
    with pytest.raises(IndexError):
        causal[9]
    with pytest.raises(libejkernel.InvalidArgument):
        CausalMask((0, 8))


@pytest.mark.parametrize("which", range(4))
def test_block_sparse_calls(which):
    t = 32
    draw = np.random.default_rng(1)
    q, k, v = (draw.standard_normal((1, 2, t, 16)).astype(np.float32) for _ in range(3))
    mask = (
        CausalMask((t, t)),
        LocalMask((t, t), (5, 3)),
        NumpyMask(draw.random((t, t)) < 0.5),
        MultiHeadMask([CausalMask((t, t)), FullMask((t, t))]),
    )[which]
    elements = mask[:] if len(mask.shape) == 3 else mask[:][None]
    expected = ejk.blocksparse_attention(q, k, v, attention_mask=np.ascontiguousarray(elements[None]))
    found = ejk.blocksparse_attention(q, k, v, **libejkernel.block_arguments(mask, (8, 8)))
    assert np.abs(found - expected).max() < 1e-5
    info, _ = libejkernel.process_mask(mask, (8, 8))
    assert info.block_mask.max() <= 2 and info.is_dynamic_mask is False


def test_pictures():
    mask = CausalMask((64, 64))
    assert mask._repr_html_().startswith("<svg")
    assert mask._repr_png_().startswith(b"\x89PNG")
    assert b"<html" in mask.draw("html")
    info = MaskInfo.from_segments(IDS).apply_causal()
    assert info._repr_html_().startswith("<svg") and info.visualize()
    with pytest.raises(libejkernel.InvalidArgument, match="format is 'gif'"):
        mask.draw("gif")
