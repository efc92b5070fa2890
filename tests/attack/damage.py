"""Damage to valid files: to their bytes, and to JSON where it stays JSON."""

import copy

BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0x0A, 0x22, 0x2C, 0x7B, 0x5B)
NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    255,
    2**15,
    2**24,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**31),
    -(2**63),
    10**30,
)
FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-308, 5e-324, 1e38, 1e308, -1e308)
TEXTS = ("", "a", "\0", "../x", "/", ".", "..", "a" * 5000, "\u00fc\u72d0", "NaN", "float32", "%s%n", "{}", "{:9999999}")


def damage_bytes(random, data):
    """The bytes with one to eight places changed: bits, values, pieces cut out, doubled or moved, the end cut off or extended."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        place = random.randrange(len(data) + 1)
        size = random.choice((1, 2, 4, 8, 16, 100))
        kind = random.randrange(8)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << random.randrange(8)
        elif kind == 1 and place < len(data):
            data[place] = random.choice(BYTES)
        elif kind == 2:
            data[place : place + size] = random.randbytes(size)
        elif kind == 3:
            del data[place : place + size]
        elif kind == 4:
            data[place:place] = data[place : place + size]
        elif kind == 5:
            del data[place:]
        elif kind == 6:
            data[place : place + 8] = random.choice(NUMBERS[:-1]).to_bytes(9, "little", signed=True)[:8]
        else:
            other = random.randrange(len(data) + 1)
            data[place : place + size] = data[other : other + size]
    return bytes(data)


def hostile_value(random, depth=0):
    """Any JSON value, odd ones above all."""
    kind = random.randrange(9)
    if kind <= 2:
        return random.choice(NUMBERS)
    if kind == 3:
        return random.choice(FLOATS)
    if kind == 4:
        return random.choice(TEXTS)
    if kind == 5:
        return random.choice((None, True, False))
    if kind == 6 or depth > 3:
        return []
    if kind == 7:
        return [hostile_value(random, depth + 1) for _ in range(random.choice((1, 2, 3, 40)))]
    return {random.choice(TEXTS[:8]): hostile_value(random, depth + 1) for _ in range(random.choice((0, 1, 3)))}


def places_in(document, path=()):
    """The paths of all members and elements, outer ones first."""
    items = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    found = []
    for key, value in items:
        found.append((*path, key))
        found += places_in(value, (*path, key))
    return found


def damage_json(random, document):
    """A copy with one to four members replaced, removed, renamed, swapped or added."""
    document = copy.deepcopy(document)
    for _ in range(random.choice((1, 1, 2, 4))):
        places = places_in(document)
        if not places:
            return hostile_value(random)
        path = random.choice(places)
        holder = at_path(document, path[:-1])
        kind = random.randrange(6)
        if kind <= 2:
            holder[path[-1]] = hostile_value(random)
        elif kind == 3:
            del holder[path[-1]]
        elif kind == 4:
            holder[path[-1]] = copy.deepcopy(at_path(document, random.choice(places)))
        elif isinstance(holder, dict):
            holder[random.choice((path[-1] + "x", "", "\0", "__metadata__"))] = holder.pop(path[-1])
        else:
            holder.insert(path[-1], hostile_value(random))
    return document


def at_path(document, path):
    for key in path:
        document = document[key]
    return document
