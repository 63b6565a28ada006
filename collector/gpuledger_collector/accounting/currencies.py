"""Currencies of ISO 4217, list one as of 2026-01-01, with the decimal places of their minor units.

Codes without a minor unit are no currency that anybody is billed in, and are left out: metals
(XAU), bond market units (XBA), drawing rights and accounting units (XDR, XSU, XUA), testing (XTS)
and no currency (XXX).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

_CODES = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: (
        "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD"
        " CAD CDF CHE CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP"
        " GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK"
        " LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO"
        " NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS"
        " SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST"
        " XAD XCD XCG YER ZAR ZMW ZWG"
    ),
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
MINOR_DIGITS: Mapping[str, int] = {
    code: digits for digits, codes in _CODES.items() for code in codes.split()
}
"""Decimal places of the minor unit, by code."""
_COMMON = ("USD", "EUR", "GBP", "JPY", "CNY", "CHF", "INR", "KRW", "CAD", "AUD", "SEK", "SGD")
_WITHDRAWN = {
    "ANG": "XCG",
    "BGN": "EUR",
    "CUC": "CUP",
    "HRK": "EUR",
    "SLL": "SLE",
    "VEF": "VES",
    "ZWL": "ZWG",
}
"""Codes that left the list since 2018, with the code that came instead."""
_SIGNS = {"$": "USD", "US$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "RMB": "CNY", "CNH": "CNY"}
"""What people write that is no code."""


def is_currency(code: str) -> bool:
    """Whether it is a code of the list, in capital letters."""
    return code in MINOR_DIGITS


def was_currency(code: str) -> bool:
    """Whether it is a code of the list, or was one lately: for files that others made of earlier
    months.
    """
    return code in MINOR_DIGITS or code in _WITHDRAWN


def currency_problem(code: str) -> str | None:
    """Why it is no currency, with the nearest that is; None when it is one."""
    if is_currency(code):
        return None
    wanted = code.strip().upper()
    meant = (
        _WITHDRAWN.get(wanted) or _SIGNS.get(wanted) or (wanted if is_currency(wanted) else None)
    )
    near = (
        [meant]
        if meant
        else get_close_matches(wanted, _COMMON, 1) or get_close_matches(wanted, MINOR_DIGITS, 1)
    )
    return f"{code!r} is not an ISO 4217 code" + (
        f"; is it {near[0]!r}?" if near else " such as USD"
    )
