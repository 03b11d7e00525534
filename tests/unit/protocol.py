#!/usr/bin/env python3
"""libcomm/PROTOCOL.md against the code: every field of every message at its offset, every number of every kind, the versions.

With --tables it prints the tables as they should be; the last column is for people, and free."""
import re
import sys

SOURCES = {
    "libcomm/wire.h": ["wire_record", "wire_hello", "wire_challenge", "wire_proof", "wire_welcome", "wire_shrink", "wire_frame", "wire_goodbye", "wire_resend", "wire_abort",
                       "wire_ask", "wire_answer", "wire_decision"],
    "libcomm/transport.h": ["transport_signature"],
    "libcomm/transport_tcp.c": ["header"],
    "libcomm/transport_shm_internal.h": ["shm_line", "shm_segment_head", "shm_proof"],
    "libcomm/transport_shm.c": ["hello"],
}
TITLES = {"header": "tcp header", "hello": "shm hello"}
ENUMS = {"libcomm/wire.h": ["wire_purpose", "wire_shrink_kind", "wire_frame_type"], "libcomm/control.h": ["control_how"], "libcomm/transport_shm_internal.h": ["shm_kind"]}
CONSTANTS = {"libcomm/wire.h": ["WIRE_VERSION", "WIRE_MAX_DECISION_BYTES", "WIRE_RECORD_HEAD_BYTES"],
             "libcomm/control_internal.h": ["CONTROL_TREE_ARITY", "CONTROL_MAX_OPENINGS", "CONTROL_OPENING_MS", "CONTROL_MAX_ACCEPTED", "CONTROL_SETTLE_MS"],
             "libcomm/transport_shm_internal.h": ["SHM_MESSAGE_BYTES"]}
SIZES = {"uint8_t": 1, "char": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8, "int64_t": 8}
defines, structs, enums = {}, {}, {}
SIZES_OF_STRUCTS, ALIGNMENTS = {}, {}


def strip(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def number(text):
    text = re.sub(r"sizeof\((struct )?(\w+)\)", lambda m: str(SIZES_OF_STRUCTS.get(m[2], SIZES.get(m[2]))), text.replace("sizeof(struct ", "sizeof(struct "))
    for name in re.findall(r"[A-Za-z_]\w*", text):
        if name in defines:
            text = re.sub(rf"\b{name}\b", str(defines[name]), text)
    text = re.sub(r"(?<=\d)[uUlL]+\b", "", text)
    return eval(text, {"__builtins__": {}})  # noqa: S307  digits and operators of our own sources


def parse(path):
    text = strip(open(path).read())
    for name, value in re.findall(r"^#define (\w+) +(.+)$", text, flags=re.M):
        try:
            defines[name] = number(value)
        except Exception:
            pass
    for name, body in re.findall(r"\benum (\w+) \{(.*?)\}", text, flags=re.S):
        value, rows = 0, []
        for item in filter(None, (part.strip() for part in body.split(","))):
            item, _, given = (part.strip() for part in item.partition("="))
            value = number(given) if given else value
            rows.append((value, item))
            value += 1
        enums[name] = rows
    for name, body in re.findall(r"\bstruct (\w+) \{([^{}]*)\}", text):
        offset, widest, rows = 0, 1, []
        try:
            for statement in filter(None, (part.strip() for part in body.split(";"))):
                aligned = re.match(r"_Alignas\((\w+)\) +", statement)
                statement = re.sub(r"^_Alignas\(\w+\) +|\b_Atomic\b *", "", statement).strip()
                kind, rest = re.match(r"((?:struct )?\w+) +(.*)$", statement, flags=re.S).groups()
                kind = kind.replace("struct ", "")
                size, align = (SIZES[kind], SIZES[kind]) if kind in SIZES else (SIZES_OF_STRUCTS[kind], ALIGNMENTS[kind])
                align = number(aligned[1]) if aligned else align
                widest = max(widest, align)
                for item in re.split(r",(?![^\[]*\])", rest):
                    field, _, count = item.strip().partition("[")
                    count = count.rstrip("]").strip() if _ else "1"
                    offset = (offset + align - 1) // align * align
                    length = size * number(count) if count else 0
                    rows.append((offset, length, field.strip()))
                    offset += length
                    align = min(align, SIZES.get(kind, align))
        except Exception:
            continue  # not one of those that are on the wire
        structs[name] = rows
        SIZES_OF_STRUCTS[name], ALIGNMENTS[name] = (offset + widest - 1) // widest * widest, widest


for source in dict.fromkeys([*SOURCES, *ENUMS, *CONSTANTS]):
    parse(source)

document = open("libcomm/PROTOCOL.md").read()
sections = {}
for title, body in re.findall(r"^#+ `([^`]+)`[^\n]*\n(.*?)(?=^#|\Z)", document, flags=re.S | re.M):
    sections[title] = body
failures, tables = [], []


def compare(title, rows, pattern):
    tables.append(f"### `{title}`\n\n" + "\n".join("| " + " | ".join(map(str, row[:-1])) + f" | `{row[-1]}` | |" for row in rows) + "\n")
    if title not in sections:
        failures.append(f"no section '### `{title}`'")
        return
    seen = [tuple([int(x) for x in match[:-1]] + [match[-1]]) for match in re.findall(pattern, sections[title], flags=re.M)]
    for row in rows:
        if row not in seen:
            failures.append(f"{title}: lacks the row | {' | '.join(map(str, row[:-1]))} | `{row[-1]}` |")
    for row in seen:
        if row not in rows:
            failures.append(f"{title}: has the row | {' | '.join(map(str, row[:-1]))} | `{row[-1]}` |, which the code has not")


for source, names in SOURCES.items():
    for name in names:
        if name not in structs:
            failures.append(f"{source}: no struct {name} that this test can read")
            continue
        title = f"struct {name}" if name not in TITLES else TITLES[name]
        compare(title, structs[name], r"^\| *(\d+) *\| *(\d+) *\| *`(\w+)` *\|")
        size = SIZES_OF_STRUCTS[name]
        heading = re.search(rf"^#+ `{re.escape(title)}`: (\d+) bytes", document, flags=re.M)
        if not heading or int(heading[1]) != size:
            failures.append(f"{title}: the heading must say '### `{title}`: {size} bytes'")
for source, names in ENUMS.items():
    for name in names:
        rows = [row for row in enums.get(name, []) if not row[1].endswith(("_END", "_KINDS"))]
        if not rows:
            failures.append(f"{source}: no enum {name}")
        compare(f"enum {name}", rows, r"^\| *(\d+) *\| *`(\w+)` *\|")
for source, names in CONSTANTS.items():
    for name in names:
        if name not in defines or not re.search(rf"`{name}` = {defines[name]}\b", document):
            failures.append(f"must say '`{name}` = {defines.get(name)}'")
if "--tables" in sys.argv:
    print("\n".join(tables))
    sys.exit(0)
for failure in failures:
    print(f"libcomm/PROTOCOL.md: {failure}")
if failures:
    print("(python3 tests/unit/protocol.py --tables prints the tables as they should be)")
print(f"{len(tables)} tables")
sys.exit(1 if failures or len(tables) < 15 else 0)
