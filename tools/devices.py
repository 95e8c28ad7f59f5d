"""`triport devices`: every backend, what it would run on, and a proof that it works or the reason why it does not."""

from __future__ import annotations

import json

from . import exits

EXAMPLES = (
    "triport devices",
    "triport devices --json",
    "triport devices --on 'qemu:riscv64?vlen=256'",
    "triport devices --on ssh:k1,ssh:k3",
)


def add(parser):
    parser.add_argument("--on", metavar="RUNNER", help="describe a board instead: ssh:user@board, qemu:riscv64?vlen=256 or local; several with commas between them")
    parser.add_argument("--json", action="store_true", help="one JSON object for each backend")


def prove(backend) -> dict:
    """Run a small op through a backend and compare it with its reference."""
    from ..bench import check
    from ..ops import registry

    op = registry.get("softmax")
    case = op.cases[0]
    import torch
    args = case.make(torch.float32, backend.place("cpu"))
    try:
        right, e = check.verdict(op, backend.bind(op)(*args, **case.kwargs), args, case.kwargs)
    except Exception as problem:
        return {"status": "failed", "reason": f"{type(problem).__name__}: {problem}"}
    return {"status": "ok" if right else "wrong", "proof": f"{op.name} {case.name} fp32: error {e:.1e}"}


def facts(name: str) -> dict:
    """A backend's line: name, status, target, versions, proof or reason."""
    from ..backends import get

    backend = get(name)
    reason = backend.unavailable()
    if reason:
        return {"backend": name, "status": "unavailable", "target": "", "versions": {}, "reason": reason}
    return {"backend": name, "target": backend.target(), "versions": backend.versions(), **prove(backend)}


def run(args) -> int:
    from ..backends import BACKENDS

    if args.on:
        return _board(args)
    rows = [facts(name) for name in BACKENDS]
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        for r in rows:
            print(f"{r['backend']}: {r['status']}")
            if r["target"]:
                print(f"    target    {r['target']}")
            if r["versions"]:
                print("    versions  " + ", ".join(f"{k} {v}" for k, v in r["versions"].items()))
            print(f"    {'proof' if 'proof' in r else 'reason':9} {r.get('proof') or r.get('reason')}")
    return exits.WRONG if any(r["status"] in ("wrong", "failed") for r in rows) else exits.GOOD


def _board(args) -> int:
    """What the board of `--on` is, its bandwidth, and the proof of backend spine on it."""
    from ..backends import get
    from ..backends.spine import backend as spine

    with spine.on(args.on):
        backend = get("spine")
        board = backend.facts()["board"]
        proof = prove(backend)
    if args.json:
        print(json.dumps({**board, **proof}, indent=1))
    else:
        print(f"{board['runner']}: {proof['status']}")
        for name, text in (("CPU", board["cpu"]), ("ISA", board["isa"]), ("vectors", f"{board['vlen']} bits" if board["vlen"] else "no registers of RISC-V's"
                                                                            if board["arch"] == "riscv64" else ""),
                           ("cores", str(board["cores"])), ("clusters", "; ".join(board["clusters"])), ("memory", f"{board['memory'] / 1e9:.1f} GB"),
                           ("copy", f"{board['bytes_per_s'] / 1e9:.2f} GB/s"), ("target", board["target"]), ("proof", proof.get("proof") or proof.get("reason"))):
            if text:
                print(f"    {name:9} {text}")
    return exits.WRONG if proof["status"] in ("wrong", "failed") else exits.GOOD
