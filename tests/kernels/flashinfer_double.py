"""FlashInfer in plain torch: the documented semantics of what we call, after the signatures of a real version.

Paged attention: request i has query rows qo_indptr[i] .. qo_indptr[i+1] and the keys of its pages in order, cut to
(pages - 1) * page_size + last_page_len (or kv_len); a causal mask is aligned bottom right. Like the library, it refuses
positions as int64, heads it has no kernel for, and last pages that are empty or overfull.
"""

from __future__ import annotations

import importlib.machinery
from functools import partial
from types import ModuleType

import torch
import torch.nn.functional as F

from tests.kernels.flashinfer_signatures import recorded, signature

WIDTHS = (64, 128, 256)


class PagedDouble:
    """What the three wrappers have in common. What was planned is kept; tables on the device are read at every run."""

    def __init__(self, given: dict) -> None:
        assert given["kv_layout"] == "NHD"
        self.plans = 0

    def keep(self, rows, pages, indices, ends, given: dict, width: int, *, causal: bool, mask=None) -> None:
        """ends: called at every run, [N]"""
        assert {rows.dtype, pages.dtype, indices.dtype, ends().dtype} == {torch.int32}
        assert width in WIDTHS and given["num_qo_heads"] % given["num_kv_heads"] == 0
        assert int(pages[-1]) == len(indices) and len(pages) == len(rows) == len(ends()) + 1
        assert given["q_data_type"] in (torch.float16, torch.bfloat16)
        self.rows, self.pages = rows.tolist(), pages.tolist()
        self.indices, self.ends, self.causal, self.size = indices, ends, causal, given["page_size"]
        self.mask = mask
        self.heads = given["num_qo_heads"], given["num_kv_heads"], width
        self.dtypes = given["q_data_type"], given["kv_data_type"]
        self.plans += 1

    def attend(self, q, k_pages, v_pages, into=None):
        heads, kv_heads, width = self.heads
        assert (q.dtype, k_pages.dtype) == self.dtypes and q.is_contiguous()
        assert q.shape == (self.rows[-1], heads, width)
        assert k_pages.shape[1:] == v_pages.shape[1:] == (self.size, kv_heads, width)
        out, used = torch.full_like(q, torch.nan), 0
        for index, end in enumerate(self.ends().tolist()):
            rows = slice(self.rows[index], self.rows[index + 1])
            chosen = self.indices[self.pages[index] : self.pages[index + 1]].long()
            keys, values = (each[chosen].flatten(0, 1)[:end].transpose(0, 1) for each in (k_pages, v_pages))
            queries = q[rows].transpose(0, 1)
            seen = torch.ones(queries.shape[1], end, dtype=torch.bool).tril(end - queries.shape[1])
            mask = seen if self.causal else None
            if self.mask is not None:
                mask = self.mask[used : used + seen.numel()].view(seen.shape)
                used += seen.numel()
            wide = [each.float()[None] for each in (queries, keys, values)]
            found = F.scaled_dot_product_attention(*wide, attn_mask=mask, enable_gqa=True)[0]
            out[rows] = found.transpose(0, 1).to(q.dtype)
        assert self.mask is None or used == len(self.mask)
        if into is None:
            return out
        assert into.shape == q.shape and into.dtype == q.dtype and into.is_contiguous()
        return into.copy_(out)


def ends_of(pages, last, size: int):
    assert int(last.min()) >= 1 and int(last.max()) <= size
    return ((pages[1:] - pages[:-1] - 1) * size + last).int()


class Prefill(PagedDouble):
    def __init__(self, given: dict) -> None:
        super().__init__(given)
        assert given["backend"] == "fa2" and given["float_workspace_buffer"].dtype == torch.uint8

    def reset_workspace_buffer(self, given: dict) -> None:
        assert given["float_workspace_buffer"].dtype == given["int_workspace_buffer"].dtype == torch.uint8

    def plan(self, given: dict) -> None:
        pages, last, size = given["paged_kv_indptr"], given["paged_kv_last_page_len"], given["page_size"]
        rows, indices, width = given["qo_indptr"], given["paged_kv_indices"], given["head_dim_qk"]
        mask, ends = given["custom_mask"], partial(ends_of, pages, last, size)
        assert mask is None or (mask.dtype == torch.bool and mask.dim() == 1 and not given["causal"])
        self.keep(rows, pages, indices, ends, given, width, causal=given["causal"], mask=mask)

    def run(self, given: dict):
        return self.attend(given["q"], *given["paged_kv_cache"], given["out"])


class DecodeDouble(Prefill):
    def __init__(self, given: dict) -> None:
        super().__init__(given)
        self.any_group = given["use_tensor_cores"]

    def plan(self, given: dict) -> None:
        pages, last, size = given["indptr"], given["last_page_len"], given["page_size"]
        assert self.any_group or given["num_qo_heads"] // given["num_kv_heads"] in (1, 2, 3, 4, 6, 8)
        rows, width = torch.arange(len(last) + 1, dtype=torch.int32), given["head_dim"]
        self.keep(rows, pages, given["indices"], lambda: ends_of(pages, last, size), given, width, causal=False)


class MixedDouble(PagedDouble):
    def plan(self, given: dict) -> None:
        rows, pages, ends = given["qo_indptr"], given["kv_indptr"], given["kv_len_arr"]
        assert given["head_dim_vo"] == given["head_dim_qk"]
        width, causal = given["head_dim_qk"], given["causal"]
        self.keep(rows, pages, given["kv_indices"], lambda: ends, given, width, causal=causal)

    def run(self, given: dict):
        return self.attend(given["q"], *given["kv_cache"], given["out"]), torch.empty(0)


def rmsnorm(given: dict):
    x = given["input"].float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + given["eps"]) * given["weight"]).to(
        given["input"].dtype
    )


def fused_add_rmsnorm(given: dict) -> None:
    """In place: the sum into `residual`, its norm into `input`."""
    given["residual"].add_(given["input"])
    given["input"].copy_(rmsnorm(given | {"input": given["residual"]}))


def silu_and_mul(given: dict):
    x = given["input"]
    assert x.shape[-1] * x.dtype.itemsize % 16 == 0
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def apply_rope_with_cos_sin_cache(given: dict):
    cache, width = given["cos_sin_cache"], given["head_size"]
    assert cache.dtype == torch.float32 and cache.is_contiguous() and width in (*WIDTHS, 512)
    cos, sin = cache[given["positions"]][:, None].chunk(2, dim=-1)

    def turned(x):
        heads = x.view(len(x), -1, width).float()
        half = width // 2
        a, b = (heads[..., :half], heads[..., half:]) if given["is_neox"] else (heads[..., ::2], heads[..., 1::2])
        pair = a * cos - b * sin, b * cos + a * sin
        out = torch.cat(pair, -1) if given["is_neox"] else torch.stack(pair, -1).flatten(-2)
        return out.to(x.dtype).view(x.shape)

    return turned(given["query"]), turned(given["key"])


CLASSES = {
    "BatchPrefillWithPagedKVCacheWrapper": Prefill,
    "BatchDecodeWithPagedKVCacheWrapper": DecodeDouble,
    "BatchAttention": MixedDouble,
}
FUNCTIONS = (rmsnorm, fused_add_rmsnorm, silu_and_mul, apply_rope_with_cos_sin_cache)


def flashinfer(version: str) -> ModuleType:
    """A module to stand for the library; every call must bind to the signatures of `version`."""
    told = recorded()[version]
    module = ModuleType("flashinfer")
    module.__spec__ = importlib.machinery.ModuleSpec("flashinfer", None)
    for name, each in CLASSES.items():
        setattr(module, name, _bound_class(each, name, told))
    for each in FUNCTIONS:
        setattr(module, each.__name__, _bound(each, told[each.__name__], ()))
    return module


def _bound(function, parameters: str, before: tuple):
    expected = signature(parameters)

    def call(*arguments, **named):
        given = expected.bind(*before, *arguments, **named)
        given.apply_defaults()
        return function(*before, given.arguments)

    return call


def _bound_class(kind: type, name: str, told: dict[str, str]):
    def make(*arguments, **named):
        made = kind.__new__(kind)
        _bound(kind.__init__, told[f"{name}.__init__"], (made,))(*arguments, **named)
        for each in told:
            owner, _, method = each.partition(".")
            if owner == name and method != "__init__":
                setattr(made, method, _bound(getattr(kind, method), told[each], (made,)))
        return made

    return make
