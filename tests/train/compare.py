#!/usr/bin/env python3
"""compare.py [--whole] A.safetensors B.safetensors MOST: relative L2 difference |a - b| / |b|, the largest of any tensor or that of all tensors
as one vector; exits 1 above MOST.
compare.py --distance A.safetensors B.safetensors: prints |a - b|, all tensors as one vector."""
import array
import json
import math
import struct
import sys


def load(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = array.array("f")
            values.frombytes(data[begin:end])
            tensors[name] = values
    return tensors


whole, distance = sys.argv[1] == "--whole", sys.argv[1] == "--distance"
first, second, most = sys.argv[2:] + ["0"] if distance else sys.argv[-3:]
a, b, most = load(first), load(second), float(most)
if set(a) != set(b) or not a:
    sys.exit(f"other tensors: {sorted(set(a) ^ set(b))}")
worst, where, differences, sizes = 0.0, "no tensor", 0.0, 0.0
for name in b:
    difference = math.fsum((x - y) ** 2 for x, y in zip(a[name], b[name], strict=True))
    size = math.fsum(y * y for y in b[name])
    differences += difference
    sizes += size
    relative = math.sqrt(difference / size) if size else (math.inf if difference else 0.0)
    if not relative <= worst:
        worst, where = relative, name
if distance:
    print(math.sqrt(differences))
    sys.exit(0)
if whole:
    worst, where = math.sqrt(differences / sizes), f"all tensors; one alone: {worst:.3g}, {where}"
print(f"{first} {second}: at most {worst:.3g} ({where}), allowed {most:g}")
sys.exit(not worst <= most)
