"""A program of its own: layouts of a TTGIR module's function arguments -> bases of linear layouts, by Triton.

Reads {"module": text, "shapes": [...]} from stdin and writes a list with [registers, lanes, warps] for each argument of function f, null where
Triton does not convert it. `layout.py` runs it.
"""

import json
import sys
import tempfile


def main():
    from triton._C import libtriton
    from triton._C.libtriton import gluon_ir, ir

    told = json.load(sys.stdin)
    context = ir.context()
    ir.load_dialects(context)
    for backend in ("nvidia", "amd"):
        if hasattr(libtriton, backend):
            getattr(libtriton, backend).load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as f:
        f.write(told["module"])
        f.flush()
        module = ir.parse_mlir_module(f.name, context)
    builder, function, out = gluon_ir.GluonOpBuilder(context), module.get_function("f"), []
    for k, shape in enumerate(told["shapes"]):
        try:
            linear = builder.to_linear_layout(builder.get_gluon_layout_from_tensor(function.args(k))._to_ir(builder), shape)
            out.append([linear.reg_bases, linear.lane_bases, linear.warp_bases])
        except (RuntimeError, ValueError, TypeError):
            out.append(None)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
