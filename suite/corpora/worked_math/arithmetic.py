"""Written arithmetic: addition, multiplication, long division and sums of fractions."""

from __future__ import annotations

from math import gcd

from suite.corpora.worked_math._worked import Draw, Worked

_PLACES = (
    "ones",
    "tens",
    "hundreds",
    "thousands",
    "ten-thousands",
    "hundred-thousands",
    "millions",
)


def addition(draw: Draw) -> Worked:
    """Two numbers of four to six digits, added column by column with carries."""
    a, b = (draw.integer(1_000, 10 ** draw.integer(4, 6) - 1) for _ in range(2))
    question = draw.pick(
        (
            f"Work out the sum {a} + {b} on paper, column by column.",
            f"Add {a} and {b} by hand and show the carries.",
            f"A museum counted {a} visitors in spring and {b} in summer. How many came in all?",
            f"What do we get when {b} is put on top of {a}?",
        )
    )
    joined = draw.pick(("We line the digits up on the right.", "Start with the last digits."))
    working = [joined]
    total, carry = a + b, 0
    width = max(len(str(a)), len(str(b)))
    for place in range(width):
        digits = [a // 10**place % 10, b // 10**place % 10]
        column = sum(digits) + carry
        shown = " + ".join(str(digit) for digit in (*digits, *([carry] if carry else [])))
        carry, written = divmod(column, 10)
        tail = f"write {written} and carry {carry}" if carry else f"write {written}"
        working.append(f"In the {_PLACES[place]} column {shown} = {column}; {tail}.")
    if carry:
        working.append(f"The last carry goes in front: a {carry} in the {_PLACES[width]} column.")
    working.append(f"Taking one number away again gives the other back: {total} - {b} = {a}.")
    conclusion = draw.pick((f"The sum is {total}.", f"Altogether that makes {total}."))
    return Worked(
        family="addition",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=str(total),
    )


def multiplication(draw: Draw) -> Worked:
    """A number of three or four digits times one of two digits, by partial products."""
    a, b = draw.integer(120, 9_899), draw.integer(12, 98)
    question = draw.pick(
        (
            f"Multiply {a} by {b} without a calculator.",
            f"Find the product {a} * {b}.",
            f"A press prints {a} sheets an hour. How many sheets does it print in {b} hours?",
            f"How much is {a} times {b}?",
        )
    )
    parts = [int(digit) * 10**place for place, digit in enumerate(reversed(str(a)))]
    parts = [part for part in reversed(parts) if part]
    split = " + ".join(map(str, parts))
    working = []
    if len(parts) > 1:
        working.append(
            draw.pick((f"Break the first factor up: {a} = {split}.", f"Note that {a} = {split}."))
        )
    working += [f"Partial product: {part} * {b} = {part * b}." for part in parts]
    total = parts[0] * b
    for part in parts[1:]:
        working.append(f"Running total: {total} + {part * b} = {total + part * b}.")
        total += part * b
    tens, ones = b // 10 * 10, b % 10
    if ones:
        working.append(
            f"The other way round, {a} * {tens} = {a * tens} and {a} * {ones} = {a * ones}, "
            f"and again {a * tens} + {a * ones} = {total}."
        )
    conclusion = draw.pick((f"Hence the product is {total}.", f"The result is {total}."))
    return Worked(
        family="multiplication",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=str(total),
    )


def division(draw: Draw) -> Worked:
    """Long division with a remainder, digit by digit."""
    divisor, dividend = draw.integer(3, 29), draw.integer(1_000, 99_999)
    question = draw.pick(
        (
            f"Divide {dividend} by {divisor} with remainder.",
            f"How often does the number {dividend} hold {divisor}, and what is left over?",
            f"We pack {dividend} bottles into crates of {divisor}. "
            "How many crates are full, and how many bottles stay out?",
        )
    )
    working = [draw.pick(("Long division, from the left:", "We take the digits one at a time:"))]
    rest = 0
    for digit in str(dividend):
        current = rest * 10 + int(digit)
        times, rest = divmod(current, divisor)
        if times == 0 and len(working) == 1:  # a quotient does not start with zeros
            continue
        working.append(
            f"Bring down {digit} to get {current}; {current} = {divisor} * {times} + {rest}, "
            f"so the next quotient digit is {times}."
        )
    quotient = dividend // divisor
    working.append(f"To verify: {divisor} * {quotient} + {rest} = {dividend}.")
    answer = f"{quotient} remainder {rest}"
    conclusion = draw.pick((f"The division gives {answer}.", f"We end with {answer}."))
    return Worked(
        family="division",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=answer,
    )


def fraction_sum(draw: Draw) -> Worked:
    """The sum or difference of two fractions, over the least common denominator."""
    b, d = draw.integer(3, 24), draw.integer(3, 24)
    a, c = draw.integer(1, 2 * b), draw.integer(1, 2 * d)
    minus = draw.pick((True, False)) and a * d > c * b
    sign, verb = ("-", "Subtract") if minus else ("+", "Add")
    question = draw.pick(
        (
            f"Compute {a}/{b} {sign} {c}/{d} and give the fraction in lowest terms.",
            f"Simplify the expression {a}/{b} {sign} {c}/{d}.",
            f"{verb} the fractions: {a}/{b} {sign} {c}/{d} is wanted, fully reduced.",
        )
    )
    common = b * d // gcd(b, d)
    left, right = a * common // b, c * common // d
    top = left - right if minus else left + right
    working = [
        draw.pick(
            (
                f"The least common multiple of the denominators {b} and {d} is {common}.",
                f"Both denominators, {b} and {d}, divide {common}, and no smaller number will do.",
            )
        ),
        f"Widen the first fraction by {common // b}: {a}/{b} = {left}/{common}.",
        f"Widen the second one by {common // d}: {c}/{d} = {right}/{common}.",
        f"Now only the numerators count: {left} {sign} {right} = {top}.",
        f"That is {left}/{common} {sign} {right}/{common} = {top}/{common}.",
    ]
    shared = gcd(top, common)
    top, bottom = top // shared, common // shared
    if shared > 1:
        working.append(
            f"Numerator and denominator share the factor {shared}: "
            f"{top * shared} / {shared} = {top} and {common} / {shared} = {bottom}."
        )
    else:
        working.append("Nothing cancels, so the fraction is already reduced.")
    answer = str(top) if bottom == 1 else f"{top}/{bottom}"
    conclusion = draw.pick((f"In lowest terms: {answer}.", f"The fraction equals {answer}."))
    return Worked(
        family="fraction_sum",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=answer,
    )
