"""What Triton keeps of compiled kernels: their texts are compressed, their metadata share a class, and they go when nobody holds them."""

import copy
import gc
import pickle
import weakref
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triport.backends.cpu.run import loaded

NAME = "slim_kernel"


def made(module: str, factor: float):
    """A kernel of a module of that name, launched."""
    def slim_kernel(x_ptr, out_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) * FACTOR, mask=i < n)

    slim_kernel.__module__ = module
    kernel = triton.jit(slim_kernel)
    x = torch.arange(5.)
    out = torch.empty(5)
    compiled = kernel[1,](x, out, 5, FACTOR=factor, BLOCK=8)
    assert torch.equal(out, x * factor)
    return kernel, compiled


def mapped() -> int:
    gc.collect()
    loaded.free()
    return list(loaded.mapped().values()).count(NAME)


def test_kernels_of_modules_that_go_are_freed():
    before = mapped()
    kernels = [made(f"module_{n}", n + .5) for n in range(4)]
    assert mapped() == before + 4
    gone = [weakref.ref(x) for pair in kernels for x in pair]
    assert kernels.pop()[0] is triton.runtime.jit._triton_jit_function_registry.get(f"module_3:{made.__qualname__}.<locals>.{NAME}")
    assert mapped() == before + 3
    kernels.clear()
    assert mapped() == before and not any(r() for r in gone)


def test_texts_are_what_the_cache_has():
    _, compiled = made("texts", 3.)
    texts = {Path(path).suffix[1:]: Path(path) for name, path in compiled.metadata_group.items() if not name.endswith(".json")}
    expected = {ext: path.read_bytes() if ext == "obj" else path.read_text() for ext, path in texts.items()}
    asm = compiled.asm
    assert "define" in asm["llir"] and "tt.func" in asm["ttir"]
    assert dict(asm) == {**asm} == dict(asm.items()) == asm.copy() == expected and list(asm.values()) == list(expected.values())
    assert asm.get("llir") == expected["llir"] and asm.get("ptx") is None and "ptx" not in asm and compiled.kernel == expected["obj"]
    with pytest.raises(KeyError):
        asm["ptx"]
    sent = pickle.loads(pickle.dumps(asm))
    assert sent == expected and type(sent) is type(asm).__base__
    kept = {ext: len(value) for ext, value in dict.items(asm) if ext != "obj"}
    assert sum(kept.values()) < sum(len(expected[ext]) for ext in kept) / 2


def test_texts_are_a_dictionary_of_texts():
    """By every way that a dictionary has to give a value away."""
    _, compiled = made("dictionary", 6.)
    asm, expected = compiled.asm, compiled.asm.copy()
    assert asm == expected and expected == asm and not asm != expected and asm != {**expected, "llir": ""} and repr(asm) == repr(expected)
    assert asm | {} == {} | asm == copy.copy(asm) == copy.deepcopy(asm) == expected
    assert asm.setdefault("llir", "") == expected["llir"] and asm.setdefault("new", "text") == "text" and asm.popitem() == ("new", "text")
    asm |= {"llir": "other"}
    assert asm["llir"] == asm.pop("llir") == "other" and asm.pop("llir", None) is None and asm.pop("ttir") == expected["ttir"]
    with pytest.raises(KeyError):
        asm.pop("ttir")


def test_metadata_share_their_class():
    (_, a), (_, b) = made("first", 4.), made("second", 5.)
    assert type(a.metadata) is type(b.metadata) and a.metadata.hash != b.metadata.hash and a.packed_metadata is a.metadata
    assert a.metadata.target_row is b.metadata.target_row
