"""SASS, NVIDIA's machine code from sm_75 on, as nvdisasm writes it. Opcodes: the instruction tables of CUDA's binary utilities guide; ones that
are missing there by what nvdisasm shows for known PTX."""

from __future__ import annotations

import functools
import re

from ..schema import UNKNOWN, Class

_WORDS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "F16": 16, "64": 64, "128": 128, "256": 256, "LTC128B": 0}

_FLOAT = {"FADD": "f32", "FMUL": "f32", "FMNMX": "f32", "FMNMX3": "f32", "FSETP": "f32", "FSET": "f32", "FCHK": "f32", "FSWZADD": "f32", "FADD2": "f32",
          "FMUL2": "f32", "MUFU": "f32", "FRND": "f32", "FCMP": "f32", "RRO": "f32", "DADD": "f64", "DMUL": "f64", "DSETP": "f64", "DMNMX": "f64", "HADD2": "f16",
          "HMUL2": "f16", "HSETP2": "f16", "HSET2": "f16", "HMNMX2": "f16", "HADD2_32I": "f16", "FADD32I": "f32", "FMUL32I": "f32", "HMUL2_32I": "f16",
          "FHADD": "f32", "FHFMA": "f32", "VHMNMX": "f16", "UFADD": "f32", "UFMUL": "f32", "UFSETP": "f32", "UFMNMX": "f32", "UFRND": "f32", "UFSET": "f32", "CREDUX": "i32"}
_FMA = {"FFMA": "f32", "FFMA32I": "f32", "FFMA2": "f32", "HFMA2": "f16", "DFMA": "f64", "IMAD": "i32", "IDP": "i8", "IDP4A": "i8", "UIMAD": "i32",
        "HFMA2_32I": "f16", "UFFMA": "f32", "IDE": "i8"}
_MATRIX = {"HMMA": "f16", "IMMA": "i8", "BMMA": "i1", "DMMA": "f64", "HGMMA": "f16", "IGMMA": "i8", "QGMMA": "f8", "BGMMA": "i1", "UTCHMMA": "f16", "UTCQMMA": "f8",
           "UTCIMMA": "i8", "UTCOMMA": "f4", "OMMA": "f4", "QMMA": "f8", "UTCMXQMMA": "f8"}
_INT = set("IADD IADD3 IADD32I IABS IMNMX IMNMX3 ISETP ISCADD LEA LOP LOP3 LOP32I PLOP3 SHF SHL SHR FLO POPC BREV BMSK SGXT BFE BFI XMAD IMUL IMUL32I ICMP ISET ISAD VABSDIFF VABSDIFF4 "
           "VIADD VIADDMNMX VIMNMX VIMNMX3 VIADDMNMX3 IADD2 IADD64 VIMNMX16 UIADD3 ULOP3 USHF USHL USHR ULEA UISETP UFLO UPOPC UBREV UBMSK USGXT UPLOP3 UIMNMX UIABS UVIADD UVIMNMX UIADD64 "
           "UVIADDMNMX LEPC P2R PSETP CSET CSETP PSET USETMAXREG ULOP32I VADD VMAD".split())
_CONVERT = set("F2F F2I I2F I2I F2FP I2IP F2IP I2FP FRND2 UF2F UI2F UF2I UI2FP UF2FP UF2IP UI2I UI2IP F2I64".split())
_MOVE = set("MOV MOV32I SEL FSEL CS2R S2R S2UR R2UR UMOV USEL R2P UP2UR R2UP UR2UP P2UR B2R R2B MOVM_ CS2UR UFSEL GETLMEMBASE SETLMEMBASE LEA_ DSEL R2M M2R UMOV32I".split())
_SHUFFLE = set("SHFL PRMT UPRMT VOTE VOTEU MATCH REDUX MOVM FSWZ CREDUX VOTE_VTG UREDUX".split())
_SYNC = set("BAR DEPBAR LDGDEPBAR LDGSTSBAR MEMBAR ERRBAR WARPSYNC BSYNC BSSY BMOV SYNCS WARPGROUP ARRIVES UCGABAR_ARV UCGABAR_WAIT FENCE UTMACMDFLUSH UTMACCTL ACQBULK WARPGROUPSET ENDCOLLECTIVE "
            "CCTL CCTLL CCTLT NANOSLEEP YIELD ELECT UTCBAR UTCATOMSWS PREEXIT CGAERRBAR UCGABAR SYNCS_ ACQSHMINIT BREAK BPT UTCCP_BAR UGETNEXTWORKID LDTRAM_ WARP".split())
_JUMP = {"BRA", "BRX", "JMP", "JMX", "BRXU", "JMXU"}


@functools.lru_cache(maxsize=65536)
def classify(mnemonic: str, operands: str, comment: str = "", machine=None) -> Class:
    op, *mods = mnemonic.split(".")
    unit = "scalar" if op.startswith("U") and op not in ("UTMALDG",) else "vector"
    if op in _JUMP:
        target = re.search(r"\((\.L[\w$.]+)\)", operands)
        if op in ("BRX", "JMX", "BRXU", "JMXU"):
            return Class("branch", flow="return")
        conditional = bool(re.match(r"\s*!?U?P\d", operands)) or "DIV" in mods or "CONV" in mods
        return Class("branch", flow="branch" if conditional else "jump", target=target[1] if target else "")
    if op in ("EXIT", "RET", "RTT", "KILL", "LONGJMP"):
        return Class("branch", flow="return")
    if op == "CALL" and re.search(r"\(\.L_x_\d+\)", operands):  # to a stub of the same function, where the warp comes together
        return Class("sync")
    if op in ("CALL", "JCAL", "PRET"):
        target = re.search(r"\(?([$\w.]+)\)?\s*$", operands)
        return Class("call", "vector", target=target[1] if target else "")
    if op in _MATRIX:
        element = next((e for m, e in (("BF16", "bf16"), ("TF32", "f32"), ("F64", "f64"), ("E4M3", "f8"), ("E5M2", "f8")) if m in mods), _MATRIX[op])
        if op == "DMMA":
            element = "f64"
        return Class("fma", "matrix", element, 0)
    if op in ("LDSM", "STSM"):
        width = 32 * next((int(m) for m in mods if m in ("2", "4")), 1)
        return Class("load" if op == "LDSM" else "store", "vector", "i16", width, space="shared",
                     **({"loads": width} if op == "LDSM" else {"stores": width}))
    if op in ("LDTM", "STTM", "UTCCP", "UTCSHIFT", "LDT", "STT", "LDTRAM"):
        return Class("load" if op[:2] == "LD" else "store", "vector", "", 0, space="tensor", **({"loads": 32} if op[:2] == "LD" else {"stores": 32}))
    width = next((_WORDS[m] for m in mods if m in _WORDS), 0) or 32
    if op in ("LDG", "LD", "LDS", "LDL", "LDC", "ULDC", "LDCU", "TEX", "TLD", "TLD4", "SULD", "TXQ", "ATTR", "ALD", "AST", "LDGMC", "UBLKCP", "UTMALDG", "LDGSTS", "UTMAREDG", "UTMASTG", "UTMAPF",
              "UBLKPF", "UBLKRED", "LDS_", "TMML", "TXD"):
        space = {"LDG": "global", "LDS": "shared", "LDL": "stack", "LDC": "const", "ULDC": "const", "LDCU": "const", "LDGSTS": "global", "UTMALDG": "global",
                 "UBLKCP": "global", "LDGMC": "global"}.get(op, "")
        if op in ("UTMASTG", "UTMAREDG", "UBLKRED"):
            return Class("store", "vector", "", 1024, stores=1024, space="global")
        if op in ("UTMALDG", "UBLKCP"):
            return Class("load", "vector", "", 1024, loads=1024, space=space)
        if op in ("UTMAPF", "UBLKPF"):
            return Class("config")
        if op == "LDGSTS":
            width = next((_WORDS[m] for m in mods if m in ("64", "128")), 32)
        return Class("load", "scalar" if space == "const" else unit, f"i{min(width, 32)}", width, loads=width, space=space)
    if op in ("STG", "ST", "STS", "STL", "SUST", "STAS"):
        space = {"STG": "global", "STS": "shared", "STL": "stack"}.get(op, "")
        return Class("store", unit, f"i{min(width, 32)}", width, stores=width, space=space)
    if op in ("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "SUATOM", "SURED", "ATOMCAS", "REDAS", "REDS"):
        element = "f32" if any(m.startswith("F32") for m in mods) else f"i{width}"
        return Class("atomic", "vector", element, width, loads=width, stores=width, space="shared" if op == "ATOMS" else "global")
    if op == "HFMA2" and re.match(r"R\d+, -?RZ, RZ, ", operands):  # 0 * 0 + a constant: how ptxas loads one
        return Class("move", "vector", "i32", 32)
    if op in _FMA:
        bits = {"f64": 64, "f32": 32, "f16": 32}.get(_FMA[op], 32)
        element = "bf16" if any(m.startswith("BF16") for m in mods) else _FMA[op]
        if op == "FFMA2":
            bits = 64
        if op == "IMAD" and mods[:1] in (["MOV"], ["SHL"], ["IADD"]):
            return Class("move" if mods[0] == "MOV" else "arithmetic", "vector", "i32", 32)
        return Class("fma", unit, element, 64 if "WIDE" in mods else bits)
    if op in _FLOAT:
        element = "f64" if "64H" in mods or "RCP64H" in mods or "RSQ64H" in mods or "F64" in mods else _FLOAT[op]
        element = "bf16" if any(m.startswith("BF16") for m in mods) else element
        return Class("arithmetic", unit, element, {"f64": 64}.get(element, 64 if op.endswith("D2") or op == "FMUL2" else 32))
    if op in _CONVERT:
        element = "f64" if any("F64" in m for m in mods) else "f32"
        if op.endswith(("I2I", "I2IP")):
            element = "i32"
        return Class("convert", unit, element, 64 if element == "f64" else 32)
    if op in _INT:
        return Class("mask" if op in ("PLOP3", "UPLOP3", "PSETP") else "arithmetic", unit, "i32", 32)
    if op in _MOVE:
        return Class("move", unit, "i32", 64 if "64" in mods or "32" not in mods and op == "CS2R" else 32)
    if op in _SHUFFLE:
        return Class("shuffle", unit, "i32", 32)
    if op in _SYNC:
        return Class("sync")
    if op in ("NOP", "UVIRTCOUNT", "PMTRIG", "SETCTAID", "PIXLD", "UNOP", "USETSHMSZ", "SETSMEMSIZE", "WARPGROUP_", "UPF", "CCTLP"):
        return Class("config")
    return UNKNOWN
