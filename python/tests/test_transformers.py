# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights: logits and gradients are those of transformers' own eager attention."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import libejkernel.transformers as ours  # noqa: E402

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
MOE = {"num_local_experts": 2, "num_experts_per_tok": 1}
MODELS = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 5}),
    "qwen3": ("Qwen3Config", {}),
    "gemma2": ("Gemma2Config", {"sliding_window": 5, "attn_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}),
    "gpt_oss": ("GptOssConfig", {"sliding_window": 5, **MOE}),
}
RECURRENT = {
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_key_head_dim": 8,
            "linear_num_value_heads": 4, "linear_value_head_dim": 16, "num_experts": 2, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        },
    ),
    "kimi_linear": (
        "KimiLinearConfig",
        {
            "layer_types": ["linear_attention", "full_attention"], "linear_num_heads": 4, "linear_head_dim": 8,
            "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
            "v_head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        },
    ),
}  # fmt: skip


def models(name):
    title, more = {**MODELS, **RECURRENT}[name]
    if not hasattr(transformers, title):
        pytest.skip(f"this version of transformers has no {title}")
    torch.manual_seed(0)
    config = getattr(transformers, title)(**{**SMALL, **more})
    eager = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for each in eager.parameters():  # sinks and norms too, which would start as zeros or ones
        each.data += 0.1 * torch.randn_like(each)
    mine = copy.deepcopy(eager)
    mine.set_attn_implementation(ours.NAME)
    assert mine.config._attn_implementation == ours.NAME
    return eager, mine


def tokens(length=12):
    torch.manual_seed(1)
    return torch.randint(1, 64, (2, length))


def close(a, b, bound=2e-5):
    assert (a - b).abs().max() <= bound * max(1.0, b.abs().max().item())


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_eager(name, padding):
    eager, mine = models(name)
    ids = tokens()
    mask = torch.ones_like(ids)
    if padding != "none":
        mask[0, slice(0, 4) if padding == "left" else slice(8, None)] = 0
    given = {} if padding == "none" else {"attention_mask": mask}
    weights = torch.randn(2, 12, 64) * mask[..., None]
    for model in (eager, mine):
        (model(ids, **given).logits * weights).sum().backward()
    close(mine(ids, **given).logits[mask > 0], eager(ids, **given).logits[mask > 0])
    for (each, a), (_, b) in zip(mine.named_parameters(), eager.named_parameters()):
        assert (a.grad is None) == (b.grad is None), each
        if a.grad is not None:
            close(a.grad, b.grad, 1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_and_four_dimensional_masks(name):
    """Tokens one by one, several at once behind a cache, and a mask of the user's own."""
    eager, mine = models(name)
    ids = tokens()
    with torch.no_grad():
        whole = eager(ids).logits
        first = mine(ids[:, :7], use_cache=True)
        second = mine(ids[:, 7:11], past_key_values=first.past_key_values, use_cache=True)
        last = mine(ids[:, 11:], past_key_values=second.past_key_values, use_cache=True)
        close(torch.cat([first.logits, second.logits, last.logits], 1), whole)
        made = mine.generate(ids[:, :5], max_new_tokens=4, do_sample=False)
        assert torch.equal(made, eager.generate(ids[:, :5], max_new_tokens=4, do_sample=False))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_packed_sequences(name):
    """Positions that start anew separate sequences: a boolean mask."""
    eager, mine = models(name)
    places = torch.cat([torch.arange(5), torch.arange(7)])[None].expand(2, -1)
    with torch.no_grad():
        given = {"position_ids": places, "use_cache": False}
        close(mine(tokens(), **given).logits, eager(tokens(), **given).logits)


@pytest.mark.parametrize("name", RECURRENT)
def test_linear_attention(name):
    """Gated delta rules, too: whole texts with their gradients, and one token after the other."""
    eager, mine = models(name)
    ours.use_recurrence(eager, False)  # whatever other tests have done
    ids = tokens(70)  # more than one chunk of theirs
    weights = torch.randn(2, 70, 64)
    expected = eager(ids).logits
    (expected * weights).sum().backward()
    names = ours.use_recurrence(mine)
    assert len(names) == 2 and all(name in each for each in names)
    try:
        found = mine(ids).logits
        (found * weights).sum().backward()
        close(found, expected)
        with torch.no_grad():
            first = mine(ids[:, :68], use_cache=True)
            second = mine(ids[:, 68:69], past_key_values=first.past_key_values, use_cache=True)
            last = mine(ids[:, 69:], past_key_values=second.past_key_values, use_cache=True)
            close(torch.cat([first.logits, second.logits, last.logits], 1), expected)
    finally:
        assert ours.use_recurrence(mine, False) == names
    for (each, a), (_, b) in zip(mine.named_parameters(), eager.named_parameters()):
        if b.grad is not None:
            close(a.grad, b.grad, 1e-4)


def test_packed_delta_rules():
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 9, 2, 8, generator=draw) for _ in range(3))
    beta, g = torch.rand(1, 9, 2, generator=draw), -torch.rand(1, 9, 2, generator=draw)
    out, _ = ours.delta_rule_of(q, k, v, g, beta, cu_seqlens=torch.tensor([0, 4, 9]))
    rest = [each[:, 4:] for each in (q, k, v, g, beta)]
    close(out[:, 4:], ours.delta_rule_of(*rest)[0])


def test_masks_are_limits_where_they_can_be():
    utils = transformers.masking_utils
    assert isinstance(ours.mask_of(2, 4, 4), ours.Pattern)
    window = utils.sliding_window_causal_mask_function(3)
    found = ours.mask_of(2, 4, 6, 2, mask_function=window, local_size=3)
    assert found.arguments(2, 4) == {"causal": True, "causal_offset": 2, "sliding_window": (2, None)}
    chunks = utils.chunked_causal_mask_function(3, torch.zeros(2, dtype=int))
    assert ours.mask_of(2, 4, 4, mask_function=chunks, local_size=3).shape == (2, 1, 4, 4)
