"""How far a result is from the right one: the error measure is scale-free, and NaN, infinities, zeros and single wrong elements cannot hide in it."""

from __future__ import annotations

import torch


#: how many times as far off as all are in the mean one element may be. Rounding errors are bounded, or sums of many and so nearly normal, of which the largest of 2^30 is 6.2 standard deviations
FAR = 8


def error(got: torch.Tensor, want: torch.Tensor, far: float = FAR, least: float = 0.0) -> float:
    """||got - want|| / ||want|| in float64 over the elements where `want` is finite, or, if that is more, the largest |got - want| / max(|want|, ||want|| / sqrt(number of
    elements)) of one of them over `far`: a row that is lost among thousands, or an element, is a wrong result (far = infinity: single ones are not looked at). ||want|| counts as at least
    what that is of elements of size `least`. Infinite when shapes differ, when NaN
    or an infinity stands in one but not (alike) in the other. A `want` below the normal numbers of got's dtype counts as
    its smallest normal number: subnormal results are spaced evenly, so a relative bound means nothing there."""
    tiny = torch.finfo(got.dtype).tiny if got.dtype.is_floating_point else 0.0
    if got.device != want.device:
        got, want = got.cpu(), want.cpu()
    got, want = got.detach(), want.detach()
    if got.shape != want.shape or got.is_complex() != want.is_complex():
        return float("inf")
    if got.is_complex():
        got, want = torch.view_as_real(got.resolve_conj()), torch.view_as_real(want.resolve_conj())
    if not got.is_floating_point() and not want.is_floating_point() and torch.equal(got.long(), want.long()):
        return 0.0
    exact = not got.is_floating_point() and not want.is_floating_point()  # integers beyond 2^53 have no double of their own
    got, want = got.double(), want.double()
    if got.numel() == 0:
        return 0.0
    if not torch.equal(torch.isnan(got), torch.isnan(want)):
        return float("inf")
    infinite = torch.isinf(want)
    if not torch.equal(got[infinite], want[infinite]):
        return float("inf")
    finite = torch.isfinite(want)
    if not torch.isfinite(got[finite]).all():
        return float("inf")
    off, want = (got[finite] - want[finite]).abs(), want[finite].abs()
    diff = off.norm().item() or float(exact)
    size = max(want.norm().item(), max(tiny, least) * want.numel() ** 0.5)
    if not size:
        return 0.0 if diff == 0.0 else float("inf")
    return max(diff / size, (off / want.clamp(min=size / want.numel() ** 0.5)).max().item() / far)
