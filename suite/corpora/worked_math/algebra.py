"""School algebra: one and two unknowns, quadratics, and sums of sequences."""

from __future__ import annotations

from suite.corpora.worked_math._worked import Draw, Worked, added, bracketed, term


def linear_equation(draw: Draw) -> Worked:
    """An equation with the unknown on both sides and a whole solution."""
    x, difference = draw.integer(-12, 15), draw.integer(2, 9)
    c, b = draw.integer(2, 9), draw.integer(-40, 40) or 7
    a = c + difference
    d = difference * x + b
    name = draw.pick("xyzntk")
    equation = f"{term(a, name)}{added(b)} = {term(c, name)}{added(d)}"
    question = draw.pick(
        (
            f"Solve for {name}: {equation}",
            f"For which value of {name} does {equation} hold?",
            f"Find the unknown in the equation {equation}",
        )
    )
    move = "add" if b < 0 else "subtract"
    working = (
        f"Collect the unknown on the left: {a} - {c} = {difference}, "
        f"which leaves {term(difference, name)}{added(b)} = {d}",
        f"Next {move} {abs(b)} on both sides: {d} {'+' if b < 0 else '-'} {abs(b)} = {d - b}, "
        f"hence {term(difference, name)} = {d - b}",
        f"Divide both sides by {difference}: {d - b} / {difference} = {x}",
        f"Put it back in on the left: {a} * {bracketed(x)}{added(b)} = {a * x + b}",
        f"and on the right: {c} * {bracketed(x)}{added(d)} = {c * x + d}",
        draw.pick(("Both sides agree.", "The two values match, as they must.")),
    )
    answer = f"{name} = {x}"
    conclusion = draw.pick((f"The solution is {answer}.", f"Only {answer} satisfies it."))
    return Worked(
        family="linear_equation",
        question=question,
        working=working,
        conclusion=conclusion,
        answer=answer,
    )


def linear_system(draw: Draw) -> Worked:
    """Two linear equations in two unknowns, solved by elimination."""
    x, y = draw.integer(-8, 12), draw.integer(-8, 12)
    a, b, c, d = (draw.integer(2, 9) for _ in range(4))
    if a * d == b * c:
        d += 1
    e, f = a * x + b * y, c * x + d * y
    first, second = f"{a}x + {b}y = {e}", f"{c}x + {d}y = {f}"
    question = draw.pick(
        (
            f"Solve the system of equations\n(I) {first}\n(II) {second}",
            f"Two lines are given by\n(I) {first}\n(II) {second}\nWhere do they cross?",
            f"Which pair x, y fulfils both conditions?\n(I) {first}\n(II) {second}",
        )
    )
    determinant, right = a * d - b * c, d * e - b * f
    working = (
        f"To eliminate y, multiply (I) by {d} and (II) by {b}.",
        f"(I) becomes {a * d}x + {b * d}y = {d * e}, since {d} * {bracketed(e)} = {d * e}",
        f"(II) becomes {b * c}x + {b * d}y = {b * f}, since {b} * {bracketed(f)} = {b * f}",
        f"Subtract the second line: {a * d} - {b * c} = {determinant} stands before x",
        f"and the right side turns into {d * e} - {bracketed(b * f)} = {right}",
        f"So x = {right} / {bracketed(determinant)} = {x}",
        f"Substitute x in (I): {b}y = {e} - {a} * {bracketed(x)} = {b * y}",
        f"which yields y = {b * y} / {b} = {y}",
        f"Test in (II): {c} * {bracketed(x)} + {d} * {bracketed(y)} = {f}",
    )
    answer = f"x = {x}, y = {y}"
    conclusion = draw.pick((f"The lines meet where {answer}.", f"The system has {answer}."))
    return Worked(
        family="linear_system",
        question=question,
        working=working,
        conclusion=conclusion,
        answer=answer,
    )


def quadratic(draw: Draw) -> Worked:
    """A monic quadratic with whole roots, by factoring or by the discriminant."""
    low, high = sorted((draw.integer(-11, 11) or 5, draw.integer(-11, 11) or -4))
    total, product = low + high, low * high
    equation = f"x^2{added(-total, 'x')}{added(product)} = 0"
    question = draw.pick(
        (
            f"Determine all real roots of {equation}",
            f"Where does the parabola cross the axis? Its equation reads {equation}",
            f"Solve the quadratic equation {equation}",
        )
    )
    if draw.pick((True, False)):
        factors = f"(x{added(-low)}) * (x{added(-high)})"
        working = [
            f"We look for two numbers whose sum is {total} and whose product is {product}.",
            f"The sum fits: {low} + {bracketed(high)} = {total}",
            f"The product fits too: {bracketed(low)} * {bracketed(high)} = {product}",
            f"Thus the left side factors as {factors}.",
            "A product vanishes exactly when one of its factors does.",
        ]
    else:
        discriminant, root = (low - high) ** 2, high - low
        working = [
            "Use the discriminant D.",
            f"D = {bracketed(-total)}^2 - 4 * {bracketed(product)} = {discriminant}",
            f"Its square root is {root}, because {root}^2 = {discriminant}",
            f"Taking plus: ({total} + {root}) / 2 = {high}",
            f"Taking minus: ({total} - {root}) / 2 = {low}",
        ]
    for value in sorted({low, high}):
        square = f"{bracketed(value)}^2"
        middle = f" - {bracketed(total)} * {bracketed(value)}" if total else ""
        working.append(f"Inserted, {value} passes: {square}{middle}{added(product)} = 0")
    answer = f"x = {low}" if low == high else f"x = {low} or x = {high}"
    found = "There is one double root" if low == high else "There are two roots"
    conclusion = draw.pick((f"{found}: {answer}.", f"Solved: {answer}."))
    return Worked(
        family="quadratic",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=answer,
    )


def arithmetic_sequence(draw: Draw) -> Worked:
    """The last term and the sum of an arithmetic sequence."""
    first, step, terms = draw.integer(1, 40), draw.integer(2, 15), draw.integer(8, 60)
    question = draw.pick(
        (
            f"A sequence begins with {first} and grows by {step} each time. "
            f"Sum its first {terms} terms.",
            f"Row one of a theatre has {first} seats and every row has {step} more seats than the "
            f"row before. How many seats are there in {terms} rows?",
            f"Starting at {first} in steps of {step}, what do the first {terms} members add up to?",
        )
    )
    last = first + (terms - 1) * step
    total = terms * (first + last) // 2
    working = (
        draw.pick(("From the first member to the last", "Between both ends"))
        + f" there are {terms} - 1 = {terms - 1} steps.",
        f"They climb by {terms - 1} * {step} = {(terms - 1) * step}",
        f"and reach {first} + {(terms - 1) * step} = {last}",
        f"Pair the members from both ends; each pair sums to {first} + {last} = {first + last}",
        f"Half of {terms} times that sum: {terms} * {first + last} / 2 = {total}",
    )
    conclusion = draw.pick((f"The members total {total}.", f"That adds up to {total}."))
    return Worked(
        family="arithmetic_sequence",
        question=question,
        working=working,
        conclusion=conclusion,
        answer=str(total),
    )


def geometric_sequence(draw: Draw) -> Worked:
    """The sum of a geometric sequence, term by term and by the closed form."""
    first, ratio, terms = draw.integer(1, 25), draw.integer(2, 6), draw.integer(4, 7)
    question = draw.pick(
        (
            f"A colony has {first} cells and multiplies {ratio}-fold every day. "
            f"Write down its size on each of {terms} days and sum them.",
            f"Sum the geometric series that opens with {first}, has quotient {ratio} "
            f"and is {terms} entries long.",
            f"Someone saves {first} coins, and from then on {ratio} times the previous deposit. "
            f"What is in the jar after {terms} deposits?",
        )
    )
    entries = [first * ratio**index for index in range(terms)]
    working = [
        f"Entry {index + 2}: {entry} * {ratio} = {entry * ratio}"
        for index, entry in enumerate(entries[:-1])
    ]
    total = sum(entries)
    working += [
        f"All entries: {' + '.join(map(str, entries))} = {total}",
        "The closed form must say the same.",
        f"Its numerator: {first} * ({ratio}^{terms} - 1) = {first * (ratio**terms - 1)}",
        f"Its denominator: {ratio} - 1 = {ratio - 1}",
        f"Quotient of the two: {first * (ratio**terms - 1)} / {ratio - 1} = {total}",
    ]
    conclusion = draw.pick((f"The series sums to {total}.", f"Everything together: {total}."))
    return Worked(
        family="geometric_sequence",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=str(total),
    )
