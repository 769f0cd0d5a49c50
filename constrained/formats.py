"""String formats that are enforced: each as a pattern for the grammar, and those whose pattern takes too much.

Tables only; `keywords.py` and `relax.py` read them. The rest of a loose format is the judge's, who asks a validator.
"""

__all__ = ["ENGINE_FORMATS", "FORMAT_LENGTHS", "FORMAT_PATTERNS", "LOOSE_FORMATS", "USUAL_PATTERNS"]

_HEX = "%[0-9A-Fa-f]{2}"
_CHAR = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_HEX})"
_BARE = f"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|{_HEX})"
_NAME = f"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_HEX})*"
_HOST = f"//(?:(?:{_NAME}:)*{_NAME}@)?{_NAME}(?::[0-9]*)?(?:/{_CHAR}*)*"
_PATH = f"/(?:{_CHAR}+(?:/{_CHAR}*)*)?"
_VARIABLE = f"(?:[A-Za-z0-9_]|{_HEX})(?:\\.?(?:[A-Za-z0-9_]|{_HEX}))*(?::[1-9][0-9]{{0,3}}|\\*)?"

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"


def _leap_seconds() -> str:
    """Second 60 stands where it is 23:59 in UTC: by offset, those of whole, half and three quarter hours."""
    found = ["23:59:60(?:\\.[0-9]+)?[Zz]"]
    for minutes in (0, 30, 45):
        for hours in range(24):
            for sign in (1, -1):
                local = (23 * 60 + 59 + sign * (hours * 60 + minutes)) % (24 * 60)
                offset = f"{'+' if sign > 0 else '-'}{hours:02}:{minutes:02}"
                found.append(f"{local // 60:02}:{local % 60:02}:60(?:\\.[0-9]+)?\\{offset}")
    return "|".join(found)


_TIME = f"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[Zz]|[+-]{_HOUR}:[0-5][0-9])|{_leap_seconds()})"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"


def _ipv6() -> str:
    """RFC 3986's grammar: eight groups, of which a run of zeros may be left out once."""
    found = [f"(?:{_GROUP}:){{6}}{_LAST}", f"::(?:{_GROUP}:){{5}}{_LAST}"]
    found += [f"(?:(?:{_GROUP}:){{0,{4 - after}}}{_GROUP})?::(?:{_GROUP}:){{{after}}}{_LAST}" for after in range(4, -1, -1)]
    found += [f"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}", f"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::"]
    return "|".join(found)


_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = '"(?:[\\x20\\x21\\x23-\\x5B\\x5D-\\x7E]|\\\\[\\x20-\\x7E])*"'
_DOMAIN = f"(?:{_LABEL}(?:\\.{_LABEL})*|\\[(?:{_IPV4}|IPv6:(?:{_ipv6()}))\\])"
_WIDE = "[^\\x00-\\x7F]"

FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "email": f"^(?:{_ATOM}(?:\\.{_ATOM})*|{_QUOTED})@{_DOMAIN}$",
    "idn-email": '^(?:[^\\x00-\\x20"@]+|"[^\\x00-\\x1F]*")@(?:[A-Za-z0-9.:\\[\\]-]|[^\\x00-\\x7F])+$',
    "hostname": f"^{_LABEL}(?:\\.{_LABEL})*$",
    "idn-hostname": f"^(?:[A-Za-z0-9]|{_WIDE})(?:[A-Za-z0-9.-]|{_WIDE})*$",
    "ipv6": f"^(?:{_ipv6()})$",
    "uri-reference": (
        f"^(?:[A-Za-z][A-Za-z0-9+.-]*:(?:{_HOST}|{_PATH}|{_CHAR}+(?:/{_CHAR}*)*)?|{_HOST}|{_PATH}|{_BARE}+(?:/{_CHAR}*)*|)"
        f"(?:\\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?$"
    ),
    "iri": '^[A-Za-z][A-Za-z0-9+.-]*:[^\\x00-\\x20"<>\\\\^`{|}\\x7F]*$',
    "iri-reference": '^[^\\x00-\\x20"<>\\\\^`{|}\\x7F]*$',
    "uri-template": (f'^(?:[^\\x00-\\x20"%<>\\\\^`{{|}}\\x7F]|{_HEX}|\\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\\}})*$'),
    "json-pointer": "^(?:/(?:[^/~]|~[01])*)*$",
    "relative-json-pointer": "^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)$",
    "regex": "^[\\s\\S]*$",
}
"""Formats that the engine doesn't know, or not exactly (RFC 3339, 3986 without IP literals, 5321, 6570, 6901)."""

LOOSE_FORMATS = frozenset({"hostname", "idn-hostname", "email", "idn-email", "iri", "iri-reference", "regex"})
"""Formats whose pattern takes more than they do."""

FORMAT_LENGTHS = {"hostname": 253}
"""The most characters, where a format has a limit that its pattern doesn't count."""

ENGINE_FORMATS = frozenset({"duration", "ipv4", "uri", "uuid"})
"""Formats that the engine knows."""

_PLAIN_TIME = f"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[Zz]|[+-]{_HOUR}:[0-5][0-9])"

USUAL_PATTERNS = {
    **FORMAT_PATTERNS,
    "time": f"^{_PLAIN_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_PLAIN_TIME}$",
    "duration": "^P(?:[0-9]+[YMWD])*(?:T(?:[0-9]+[HMS])+)?$",
    "ipv4": f"^{_IPV4}$",
    "uri": "^[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9/?#._~-]*$",
    "regex": "",
    "uuid": "^[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$",
}
"""What texts in a format usually look like: hints at how one that is begun may go on."""
