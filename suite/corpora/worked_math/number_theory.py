"""Whole numbers: Euclid's algorithm, prime factors and powers modulo a number."""

from __future__ import annotations

from math import gcd, prod

from suite.corpora.worked_math._worked import Draw, Worked

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)


def common_divisor(draw: Draw) -> Worked:
    """Greatest common divisor by Euclid, and from it the least common multiple."""
    shared = draw.integer(2, 36)
    small, large = sorted(shared * draw.integer(5, 70) for _ in range(2))
    large += shared if small == large else 0
    question = draw.pick(
        (
            f"Find the greatest common divisor of {large} and {small}, "
            "then their least common multiple.",
            f"Run Euclid's algorithm on {large} and {small}. "
            "What do the gcd and the lcm turn out to be?",
            f"Two gears with {large} and {small} teeth mesh. Which is the largest number that "
            "divides both counts, and after how many teeth is the start position back?",
        )
    )
    working = [draw.pick(("Divide, keep the remainder, repeat.", "Euclid's steps are these."))]
    a, b = large, small
    while b:
        working.append(f"{a} = {a // b} * {b} + {a % b}")
        a, b = b, a % b
    divisor, multiple = gcd(large, small), large // gcd(large, small) * small
    working += [
        f"The remainder has become zero, and the last divisor used was {divisor}.",
        f"Reduced counts: {large} / {divisor} = {large // divisor} and "
        f"{small} / {divisor} = {small // divisor}, which have no common factor.",
        f"The multiple follows: {large // divisor} * {small} = {multiple}",
    ]
    answer = f"gcd {divisor}, lcm {multiple}"
    conclusion = draw.pick((f"Euclid delivers {answer}.", f"In short: {answer}."))
    return Worked(
        family="common_divisor",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=answer,
    )


def factorisation(draw: Draw) -> Worked:
    """Prime factors by trial division, and the number of divisors."""
    number = 1
    while number < 300:
        number *= draw.pick(_PRIMES[: draw.integer(2, len(_PRIMES))])
    question = draw.pick(
        (
            f"Decompose {number} into primes and count its divisors.",
            f"Write {number} as a product of prime powers. How many positive divisors has it?",
            f"What is the prime factorisation of {number}, and how many numbers divide it evenly?",
        )
    )
    working = [draw.pick(("Try the primes in order.", "We peel off the smallest prime first."))]
    rest, factors = number, list[int]()
    for prime in _PRIMES:
        if rest > 1 and rest % prime:
            working.append(f"{prime} does not divide {rest}; go on.")
        while rest % prime == 0:
            working.append(f"{prime} works: {rest} / {prime} = {rest // prime}")
            factors.append(prime)
            rest //= prime
    powers = {prime: factors.count(prime) for prime in factors}
    product = " * ".join(f"{p}^{count}" if count > 1 else str(p) for p, count in powers.items())
    if len(factors) > 1:
        working.append(f"Multiplied out: {' * '.join(map(str, factors))} = {number}")
    choices = " * ".join(f"({count} + 1)" for count in powers.values())
    divisors = prod(count + 1 for count in powers.values())
    working.append(
        f"A divisor takes each prime from zero times up to its exponent: {choices} = {divisors}"
    )
    answer = f"{number} = {product}, with {divisors} divisors"
    conclusion = draw.pick((f"Prime factorisation: {answer}.", f"Decomposed, {answer}."))
    return Worked(
        family="factorisation",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=answer,
    )


def modular_power(draw: Draw) -> Worked:
    """A power modulo a number, by repeated squaring."""
    modulus, base, exponent = draw.integer(11, 97), draw.integer(2, 40), draw.integer(9, 120)
    question = draw.pick(
        (
            f"Compute {base}^{exponent} mod {modulus} by repeated squaring.",
            f"Which remainder does {base}^{exponent} leave when it is reduced mod {modulus}?",
            f"Evaluate the modular power {base}^{exponent} mod {modulus}.",
        )
    )
    bits = [2**index for index in range(exponent.bit_length()) if exponent >> index & 1]
    working = [
        f"In binary the exponent is {exponent:b}."
        + (f" Indeed {exponent} = {' + '.join(map(str, reversed(bits)))}" if bits[1:] else "")
    ]
    residue, power = base % modulus, 1
    working.append(f"Power 1 is {base} mod {modulus} = {residue}")
    residues = {1: residue}
    while power * 2 <= exponent:
        squared = residue**2
        power, residue = power * 2, squared % modulus
        residues[power] = residue
        working.append(f"Power {power}, squared from before: {squared} mod {modulus} = {residue}")
    result = residues[bits[0]]
    for bit in bits[1:]:
        raw = result * residues[bit]
        working.append(
            f"Include power {bit}: {result} * {residues[bit]} = {raw} and "
            f"{raw} mod {modulus} = {raw % modulus}"
        )
        result = raw % modulus
    conclusion = draw.pick((f"The residue is {result}.", f"The remainder comes to {result}."))
    return Worked(
        family="modular_power",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=str(result),
    )
