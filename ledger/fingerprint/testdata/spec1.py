# SPDX-License-Identifier: Apache-2.0
"""A second implementation of docs/fingerprint.md, over Python's own json, decimal, datetime and unicodedata.

    python3 spec1.py < vectors.jsonl

writes each line with its results again: the same ones, if all is well. It reads well rather than fast, and shares nothing with the Go code.
"""

import datetime
import decimal
import hashlib
import hmac
import json
import re
import sys
import unicodedata

decimal.getcontext().prec = 2000
decimal.getcontext().Emax = 10000
decimal.getcontext().Emin = -10000

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z")
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))\Z"
)
DIGITS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW CNY COP "
    "COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD "
    "KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK "
    "NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT "
    "TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
MINOR = {code: digits for digits, codes in DIGITS.items() for code in codes.split()}


def second(code):
    """What can be the second of two characters that Form C composes: NFC_Quick_Check is Maybe."""
    pair = unicodedata.decomposition(chr(code)).split()
    if len(pair) == 2 and not pair[0].startswith("<") and unicodedata.normalize("NFC", chr(code)) == chr(code):
        return chr(int(pair[1], 16))


MAYBE = {second(code) for code in range(0xC0, 0x30000)} | set(map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]))


class Refused(Exception):
    """pointer: the field; kind: what is wrong with it."""

    def __init__(self, pointer, kind):
        super().__init__(pointer, kind)
        self.pointer, self.kind = pointer, kind


class Number:
    """An exact decimal, bounded as section 1 says."""

    def __init__(self, text):
        match = NUMBER.match(text)
        significand, _, exponent = text.lower().partition("e")
        if exponent and abs(int(exponent)) > 400:
            raise Refused("", "exponent")
        value = decimal.Decimal(text)
        self.negative, digits, exp = value.as_tuple()
        digits = "".join(map(str, digits)).lstrip("0")
        stripped = digits.rstrip("0")
        self.digits, self.exp = stripped, exp + len(digits) - len(stripped)
        if self.digits and len(self.digits) > 100:
            raise Refused("", "digits")
        if self.digits and abs(self.exp + len(self.digits) - 1) > 400:
            raise Refused("", "exponent")
        assert match

    def text(self):
        k = len(self.digits)
        if k == 0:
            return "0"
        n = self.exp + k
        sign = "-" if self.negative else ""
        if k <= n <= 21:
            return sign + self.digits + "0" * (n - k)
        if 0 < n < k and n <= 21:
            return sign + self.digits[:n] + "." + self.digits[n:]
        if -6 < n <= 0:
            return sign + "0." + "0" * -n + self.digits
        rest = "." + self.digits[1:] if k > 1 else ""
        return sign + self.digits[0] + rest + "e" + "%+d" % (n - 1)

    def places(self):
        return max(-self.exp, 0) if self.digits else 0


class Obj(dict):
    pass


class Set(list):
    pass


class Money:
    """The number of money whose currency the contract names."""

    def __init__(self, number, currency):
        self.number, self.currency = number, currency


def pairs(members):
    out = Obj(members)
    if len(out) != len(members):
        raise Refused("", "duplicate")
    return out


def parse(text):
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    if len(text) > 262144:
        raise Refused("", "size")
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("", "utf8")
    if decoded.startswith("\ufeff"):
        raise Refused("", "bom")

    def no(constant):
        raise Refused("", "syntax")

    try:
        root = json.loads(decoded, object_pairs_hook=pairs, parse_int=Number, parse_float=Number, parse_constant=no)
    except (ValueError, RecursionError):
        raise Refused("", "syntax")
    if not isinstance(root, Obj):
        raise Refused("", "object")
    check(root, 1)
    return root


def check(value, depth):
    if isinstance(value, (Obj, list)) and depth > 64:
        raise Refused("", "depth")
    if isinstance(value, Obj):
        for name, member in value.items():
            check(name, depth)
            check(member, depth + 1)
    elif isinstance(value, list):
        for element in value:
            check(element, depth + 1)
    elif isinstance(value, str) and any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise Refused("", "surrogate")


def tokens(path):
    if not path.startswith("/"):
        path = "/" + path
    return tuple(t.replace("~1", "/").replace("~0", "~") for t in path[1:].split("/"))


def pointer(way):
    return "".join("/" + str(t).replace("~", "~0").replace("/", "~1") for t in way)


def general(way):
    """The path of a place: an index is any element."""
    return tuple("*" if isinstance(t, int) else t for t in way)


class Contract:
    def __init__(self, declared):
        self.fields = {tokens(p): f for p, f in (declared.get("fields") or {}).items()}
        self.ignored = {tokens(p) for p in declared.get("ignore") or []}

    def category(self, path):
        for n in range(len(path), 0, -1):
            category = self.fields.get(path[:n], {}).get("category")
            if category:
                return category
        return "other"

    def split(self, path):
        own = self.category(path)
        return any(len(p) > len(path) and p[: len(path)] == path and self.category(p) != own for p in self.fields)


def drop(value, contract, way=()):
    if isinstance(value, Obj):
        for name in list(value):
            if general(way + (name,)) in contract.ignored:
                del value[name]
            else:
                drop(value[name], contract, way + (name,))
    elif isinstance(value, list):
        for i, element in enumerate(value):
            drop(element, contract, way + (i,))


def defaults(root, contract):
    for path, field in contract.fields.items():
        if "default" not in field:
            continue
        behind = len(path) - path[::-1].index("*") if "*" in path else 0
        objects = [root]
        for token in path[:behind]:
            if token == "*":
                objects = [e for o in objects if isinstance(o, list) for e in o]
            else:
                objects = [o[token] for o in objects if isinstance(o, Obj) and token in o]
        for o in objects:
            for token in path[behind:-1]:
                if not isinstance(o, Obj):
                    break
                o = o.setdefault(token, Obj())
            if isinstance(o, Obj) and path[-1] not in o:
                o[path[-1]] = parse('{"d":' + json.dumps(field["default"]) + "}")["d"]


def number(value, way, kind):
    if isinstance(value, str) and NUMBER.match(value):
        try:
            value = Number(value)
        except Refused:
            raise Refused(pointer(way), "bounds")
    if not isinstance(value, Number):
        raise Refused(pointer(way), kind)
    return value


def currency_at(root, path, way):
    """The value at a currency's path, and its own way: its indexes are those of the money."""
    where = tuple(way[n] if token == "*" else token for n, token in enumerate(path))
    value = root
    for token in where:
        if isinstance(value, Obj) and token in value or isinstance(value, list) and isinstance(token, int):
            value = value[token]
        else:
            return None, where
    return value, where


def typed(value, contract, root, observed, way=()):
    field = contract.fields.get(general(way), {})
    kind = field.get("type")
    if kind and value is not None:
        value = one(value, kind, field, root, observed, way)
    if isinstance(value, Obj):
        return Obj((name, typed(member, contract, root, observed, way + (name,))) for name, member in value.items())
    if isinstance(value, list):
        elements = [typed(e, contract, root, observed, way + (i,)) for i, e in enumerate(value)]
        return Set(elements) if isinstance(value, Set) else elements
    return value


def one(value, kind, field, root, observed, way):
    if kind == "set":
        if not isinstance(value, list):
            raise Refused(pointer(way), "set")
        return Set(value)
    if kind == "decimal":
        return number(value, way, "decimal")
    if kind == "money" and "currency" in field:
        value = number(value, way, "decimal")
        code, where = currency_at(root, tokens(field["currency"]), way)
        if code is None:
            if observed:
                return value
            raise Refused(pointer(way), "no currency")
        if not isinstance(code, str) or code not in MINOR:
            raise Refused(pointer(where), "currency")
        if value.places() > MINOR[code]:
            raise Refused(pointer(way), "minor units")
        return Money(value, code)
    if kind == "money":
        if not isinstance(value, Obj) or set(value) != {"amount", "currency"} or value["amount"] is None:
            raise Refused(pointer(way), "money")
        amount = number(value["amount"], way + ("amount",), "decimal")
        code = value["currency"]
        if code is None:
            raise Refused(pointer(way + ("amount",)), "no currency")
        if not isinstance(code, str) or code not in MINOR:
            raise Refused(pointer(way + ("currency",)), "currency")
        if amount.places() > MINOR[code]:
            raise Refused(pointer(way + ("amount",)), "minor units")
        return Obj(amount=amount, currency=code)
    if not isinstance(value, str):
        raise Refused(pointer(way), kind)
    if kind == "timestamp":
        return timestamp(value, way)
    if kind == "uuid":
        if not UUID.match(value):
            raise Refused(pointer(way), kind)
        return value.lower()
    run = 0
    for c in unicodedata.normalize("NFKD", value):
        run = run + 1 if unicodedata.combining(c) or c in MAYBE else 0
        if run > 30:
            raise Refused(pointer(way), "combining")
    return unicodedata.normalize("NFC", value)


def timestamp(value, way):
    match = TIME.match(value)
    if not match:
        raise Refused(pointer(way), "timestamp")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    fraction, sign, hours, minutes = match.groups()[6:]
    alike = year % 400 + 2000  # a year with the same calendar, for datetime ends at 1 and 9999
    try:
        local = datetime.datetime(alike, month, day, hour, minute, second)
    except ValueError:
        raise Refused(pointer(way), "timestamp")
    east = datetime.timedelta(0)
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            raise Refused(pointer(way), "timestamp")
        east = datetime.timedelta(hours=int(hours), minutes=int(minutes))
        if sign == "-":
            east = -east
    utc = local - east
    year += utc.year - alike
    if not 0 <= year <= 9999:
        raise Refused(pointer(way), "timestamp")
    fraction = (fraction or "").rstrip("0")
    return "%04d-%s%sZ" % (year, utc.strftime("%m-%dT%H:%M:%S"), "." + fraction if fraction else "")


def quoted(s):
    short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    return '"' + "".join(short.get(c) or ("\\u%04x" % ord(c) if c < " " else c) for c in s) + '"'


def members(value):
    return sorted(value.items(), key=lambda m: m[0].encode("utf-16-be"))


def write(value, part=False):
    if isinstance(value, Money):
        if part:
            return '{"amount":%s,"currency":%s}' % (value.number.text(), quoted(value.currency))
        return value.number.text()
    if isinstance(value, Number):
        return value.text()
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Obj):
        return "{" + ",".join(quoted(n) + ":" + write(m, part) for n, m in members(value)) + "}"
    if isinstance(value, Set):
        elements = sorted((write(e).encode(), write(e, part)) for e in value)
        return "[" + ",".join(text for _, text in elements) + "]"
    if isinstance(value, list):
        return "[" + ",".join(write(e, part) for e in value) + "]"
    return {None: "null", True: "true", False: "false"}[value]


def repeats(value, way=()):
    if isinstance(value, Obj):
        for name, member in value.items():
            repeats(member, way + (name,))
    elif isinstance(value, list):
        for i, e in enumerate(value):
            repeats(e, way + (i,))
        if isinstance(value, Set):
            seen = set()
            for i, e in enumerate(value):
                if write(e) in seen:
                    raise Refused(pointer(way + (i,)), "repeat")
                seen.add(write(e))


def parts(root, contract):
    names = {"other"} | {f["category"] for f in contract.fields.values() if f.get("category")}
    out = {}
    for name in sorted(names):
        text = part(root, contract, name, ())
        if text is not None:
            out[name] = text
    return out


def part(value, contract, name, path):
    """The part of a category, None if it has no leaf there."""
    container = isinstance(value, (Obj, list)) and not isinstance(value, Set) and len(value) > 0
    if not path and not container:
        return None
    if not (container and contract.split(path)):
        return write(value, True) if contract.category(path) == name else None
    if isinstance(value, Obj):
        texts = [(quoted(n), part(m, contract, name, path + (n,))) for n, m in members(value)]
    else:
        texts = [(str(i), part(e, contract, name, path + ("*",))) for i, e in enumerate(value)]
    texts = [label + ":" + text for label, text in texts if text is not None]
    if not texts:
        return None
    return "{%s}" % ",".join(texts) if isinstance(value, Obj) else "[%s]" % ",".join(texts)


def canonical(request, declared, observed=False):
    contract = Contract(declared)
    root = parse(request)
    drop(root, contract)
    if not observed:
        defaults(root, contract)
    root = typed(root, contract, root, observed)
    repeats(root)
    return write(root), parts(root, contract)


def lp(x):
    x = x.encode() if isinstance(x, str) else x
    return len(x).to_bytes(8, "big") + x


SECRET = bytes(range(32))
GIVEN = ["id", "reason", "request", "contract", "depends_on", "compensates", "corrects", "subject", "secret_id", "slot_of"]


def mac(*texts):
    return hmac.new(SECRET, b"".join(texts), hashlib.sha256)


def vector(case):
    contract = case.get("contract") or {}
    out = {name: given for name, given in case.items() if name in GIVEN}
    try:
        text, texts = canonical(case["request"], contract)
    except Refused as refused:
        out["refused"] = {"pointer": refused.pointer, "kind": refused.kind}
        return out
    depends = sorted(set(case.get("depends_on") or []))
    compensates, corrects = case.get("compensates") or "", case.get("corrects") or ""
    related = len(depends).to_bytes(8, "big") + b"".join(map(lp, depends)) + lp(compensates) + lp(corrects)
    content = hashlib.sha256(text.encode())
    out["canonical"], out["content_sha256"], out["parts"] = text, content.hexdigest(), texts
    out["fingerprint"] = mac(lp("opsledger/fingerprint/1/request"), lp(content.digest()), lp(related)).hexdigest()
    digests = {
        name: mac(lp("opsledger/fingerprint/1/category"), lp(name), lp(hashlib.sha256(t.encode()).digest())).hexdigest()[:16]
        for name, t in texts.items()
    }
    if depends or compensates or corrects:
        digests["relation"] = mac(lp("opsledger/fingerprint/1/relation"), lp(related)).hexdigest()[:16]
    out["category_digests"] = digests
    if "subject" in case:
        out["subject_digest"] = mac(lp("opsledger/subject/1"), lp(case["subject"])).hexdigest()
    if "secret_id" in case:
        out["check"] = mac(lp("opsledger/secret-check/1"), lp(case["secret_id"])).hexdigest()[:16]
    if "slot_of" in case:
        of = case["slot_of"]
        parts = [lp(name) + lp(hashlib.sha256(texts[name].encode()).digest() if name in texts else "") for name in sorted(set(of["by"]))]
        out["slot"] = mac(lp("opsledger/slot/1"), lp(of["scope"]), lp(of["subject"]), lp(of["tool"]), *parts).hexdigest()
    return out


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(vector(json.loads(line))), flush=True)
