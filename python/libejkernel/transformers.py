# SPDX-License-Identifier: Apache-2.0
"""Attention of Hugging Face's transformers by this library.

Importing it registers "ejkernel" as an attention implementation, and as one of masks, without which a model would lose
its causality:

    import libejkernel.transformers
    model = AutoModel.from_config(config, attn_implementation="ejkernel")

Causal masks, windows and padding are passed on as such and are never made; other masks become boolean ones. Linear
attention is no part of this interface: use_recurrence(model) has a model's gated delta rules computed here, too.
"""

from __future__ import annotations

import inspect
import re
import sys

import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

from . import _shapes
from . import torch as _functions
from ._description import catalogue

#: The name of the implementation.
NAME = "ejkernel"

_WANTED = {"query", "key", "value", "bias", "softmax_aux", "logits_soft_cap", "sliding_window"}


def _attention():
    """The operation that has all that models ask for, and takes packed sequences as well: it is made for speed."""
    for name in catalogue().names():
        operation = catalogue()[name]
        fields = operation.args.by_name
        if not operation.takes_mask_info or operation.forward or not set(fields) >= _WANTED:
            continue
        if len(_shapes.unit_of(fields["query"].unit).shapes) > 1:
            return getattr(_functions, name)
    raise ImportError("libejkernel has no operation that models could use")


_operation = _attention()


class Pattern:
    """A mask by its limits: what mask_of() hands to attention_of() through a model."""

    def __init__(self, causal, offset=0, window=None, valid=None):
        self.causal, self.offset, self.window, self.valid = causal, offset, window, valid

    def arguments(self, batch, queries):
        """Those of a call."""
        found = {"causal": self.causal}
        if self.causal:
            found["causal_offset"] = self.offset
            if self.window is not None:
                found["sliding_window"] = (self.window - 1, None)
        if self.valid is not None:
            found["kv_segment_ids"] = self.valid
            found["q_segment_ids"] = self.valid.new_ones(batch, queries)
        return found


def _window_of(function, size):
    """The window of a mask function that is causal with a window of that size; 0: it is something else."""
    cells = getattr(function, "__closure__", None) or ()
    parts = next((c.cell_contents for c in cells if isinstance(c.cell_contents, tuple)), ())
    names = {getattr(part, "__qualname__", "").partition(".")[0] for part in parts}
    is_window = len(parts) == 2 and names == {"sliding_window_overlay", "causal_mask_function"}
    if not is_window:
        return 0
    overlay = next(part for part in parts if part is not masking_utils.causal_mask_function)
    inside = [cell.cell_contents for cell in overlay.__closure__ or ()]
    return size if inside == [size] else 0


def mask_of(
    batch_size,
    q_length,
    kv_length,
    q_offset=0,
    kv_offset=0,
    mask_function=masking_utils.causal_mask_function,
    attention_mask=None,
    local_size=None,
    allow_is_causal_skip=True,
    **more,
):
    """What transformers asks for a model's mask: a Pattern, or a boolean mask of four axes."""
    window = None
    if mask_function is masking_utils.bidirectional_mask_function:
        causal = False
    elif mask_function is masking_utils.causal_mask_function:
        causal = True
    else:
        window = _window_of(mask_function, local_size)
        causal = bool(window)
    offset = q_offset - kv_offset
    known = window != 0 and isinstance(offset, int)
    if not known:
        return masking_utils.sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            **{**more, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
        )
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    valid = None
    if padding is not None:
        valid = padding[:, kv_offset : kv_offset + kv_length].to(torch.int32)
    return Pattern(causal, offset, window, valid)


def _mask_arguments(module, query, key, mask, sliding_window, is_causal):
    if isinstance(mask, Pattern):
        return mask.arguments(query.shape[0], query.shape[2])
    if mask is not None:
        mask = mask[..., : key.shape[2]]
        return {"attention_mask": mask} if mask.dtype == torch.bool else {"bias": mask.to(query.dtype)}
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window = (sliding_window - 1, None) if causal and sliding_window else None
    return {"causal": bool(causal), "sliding_window": window}


def attention_of(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    dropout=0.0,
    sliding_window=None,
    softcap=None,
    s_aux=None,
    is_causal=None,
    position_bias=None,
    **more,
):
    """Attention as transformers asks for it: tensors are [B,H,T,D], the result is [B,T,H,D], without weights."""
    arguments = _mask_arguments(module, query, key, attention_mask, sliding_window, is_causal)
    if position_bias is not None:
        bias = arguments.get("bias")
        arguments["bias"] = position_bias.to(query.dtype) if bias is None else bias + position_bias.to(query.dtype)
    if s_aux is not None:
        arguments["softmax_aux"] = s_aux.to(query.dtype).reshape(query.shape[1], -1)
    if dropout:
        arguments |= {"dropout_prob": dropout, "dropout_seed": int(torch.randint(2**31 - 1, ()))}
    out = _operation(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        softmax_scale=scaling,
        logits_soft_cap=softcap,
        **arguments,
    )
    return out, None


# ---- Linear attention ------------------------------------------------------------------------------------------------

_RECURRENT = {"query", "key", "value", "beta", "decay", "A_log", "initial_state", "use_qk_l2norm"}
_RULE = re.compile(r"(chunk|recurrent)\w*_delta_")  # what transformers calls such functions
_TAKEN = {"query", "key", "value", "g", "beta", "initial_state", "output_final_state"}
_replaced = {}


def _recurrence():
    """The operation of gated delta rules, whose decays are of heads or of channels."""
    for name in catalogue().names():
        operation = catalogue()[name]
        if not operation.forward and set(operation.args.by_name) >= _RECURRENT and catalogue().gradient_of(name):
            return getattr(_functions, name)
    raise ImportError("libejkernel has no operation for gated delta rules")


def delta_rule_of(
    query,
    key,
    value,
    g,
    beta,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    **more,
):
    """A gated delta rule as transformers asks for it: [B,T,H,D], and (outputs, last state or None)."""
    tensors = [query, key, value, beta.to(query.dtype), g.float()]
    if cu_seqlens is not None:
        tensors = [each.squeeze(0) for each in tensors]
    query, key, value, beta, g = tensors
    found = _recurrence()(
        query,
        key,
        value,
        beta,
        g,
        initial_state=initial_state if initial_state is None else initial_state.float(),
        cu_seqlens=cu_seqlens if cu_seqlens is None else cu_seqlens.to(torch.int32),
        use_qk_l2norm=use_qk_l2norm_in_kernel,
        return_final_state=output_final_state,
    )
    out, state = found if output_final_state else (found, None)
    return (out if cu_seqlens is None else out.unsqueeze(0)), state


def use_recurrence(model, use=True):
    """Has gated delta rules of a model, and of all others of its kind, computed by the library, or not any more.

    Parameters
    ----------
    model : torch.nn.Module
        A model of transformers with layers of linear attention.
    use : bool
        False: by transformers' own functions again.

    Returns
    -------
    list of str
        The functions in whose place the library's is, or was.
    """
    names = []
    for module in {sys.modules[type(layer).__module__] for layer in model.modules()}:
        for name, function in list(vars(module).items()):
            if not _RULE.search(name) or not callable(function):
                continue
            original = _replaced.get((module.__name__, name), function)
            if not set(inspect.signature(original).parameters) >= _TAKEN:
                continue
            _replaced[module.__name__, name] = original
            setattr(module, name, delta_rule_of if use else original)
            names.append(f"{module.__name__}.{name}")
    return sorted(names)


AttentionInterface.register(NAME, attention_of)
AttentionMaskInterface.register(NAME, mask_of)
