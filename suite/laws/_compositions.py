"""Laws written as a sum of terms by name, such as ``parameters + shifted tokens``."""

from __future__ import annotations

from suite.errors import InputError
from suite.laws._equivalence import equivalence
from suite.laws._form import Form
from suite.laws._power import power
from suite.laws._terms import Symbol, Term

# Coefficient, exponent and shift of each variable's power term: those of the published laws.
_SYMBOLS = {
    "parameters": ("A", "alpha", "t1"),
    "tokens": ("B", "beta", "t2"),
    "recurrence": ("C", "gamma", "t3"),
    "step": ("C", "gamma", "t3"),
    "x": ("A", "alpha", "t1"),
}
_EQUIVALENCE = "equivalence"
_SHIFTED, _RISING = "shifted", "rising"
_GRAMMAR = (
    f"write terms with + between them, each one of {', '.join([*_SYMBOLS, _EQUIVALENCE])}, with "
    f"{_SHIFTED!r} before it for A/(x + t)^alpha and {_RISING!r} to let the loss grow with it, "
    "such as 'parameters + shifted tokens + rising recurrence'"
)


def compose(text: str) -> Form:
    """The law ``E + term + term + ...`` that a sum of names stands for.

    A term is a variable's name, ``parameters`` or ``tokens``, perhaps after ``shifted`` (a
    shift is fitted too) and ``rising`` (a loss that grows with the variable is tried too); or
    ``equivalence``, the term of ``recurrence_equivalence``.

    Raises:
        InputError: naming the term that is none, or that shares its symbols with another.
    """
    terms: list[Term] = []
    spellings: list[str] = []
    taken: dict[str, str] = {}
    for part in text.split("+"):
        words = part.split()
        terms.append(_term(words, text))
        spellings.append(" ".join(words))
        for symbol in terms[-1].symbols:
            if symbol.name in taken:
                raise InputError(
                    f"{taken[symbol.name]!r} and {spellings[-1]!r} in {text!r} both spend the "
                    f"parameter {symbol.name}; a law has one term of each kind"
                )
            taken[symbol.name] = spellings[-1]
    return Form(
        name=" + ".join(spellings),
        source="composed of terms by name",
        constant=Symbol(name="E", unit="nats", lower=0.0),
        terms=tuple(terms),
    )


def is_composition(text: str) -> bool:
    """Whether a name is a sum of terms, or one term, rather than a law of its own name."""
    last = text.split()[-1:]
    return "+" in text or (bool(last) and last[0] in {*_SYMBOLS, _EQUIVALENCE})


def _term(words: list[str], text: str) -> Term:
    modifiers, names = words[:-1], words[-1:]
    if names == [_EQUIVALENCE] and not modifiers:
        return equivalence("A", "alpha", "phi")
    known = set(modifiers) <= {_SHIFTED, _RISING} and len(set(modifiers)) == len(modifiers)
    if not names or names[0] not in _SYMBOLS or not known:
        raise InputError(f"{' '.join(words)!r} in {text!r} is no term of a law; {_GRAMMAR}")
    coefficient, exponent, shift = _SYMBOLS[names[0]]
    return power(
        coefficient,
        exponent,
        names[0],
        shift if _SHIFTED in modifiers else None,
        rises=_RISING in modifiers,
    )
