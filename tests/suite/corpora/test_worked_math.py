"""Every equation in the worked solutions holds, and every answer follows from its question."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.corpora.worked_math import FAMILIES, Draw, Worked, worked_math, worked_problems

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
NAMES = tuple(family.__name__ for family in FAMILIES)

_TOKEN = re.compile(r"\d+(?:\.\d+)?|[-+*/^()]|mod")


def evaluate(expression: str) -> Fraction:
    """Exact value by a small recursive-descent parser; ValueError for anything else."""
    tokens = _TOKEN.findall(expression)
    if "".join(tokens) != expression.replace(" ", "") or not tokens:
        raise ValueError(expression)

    def take() -> str:
        if not tokens:
            raise ValueError(expression)
        return tokens.pop(0)

    def atom() -> Fraction:
        token = take()
        if token == "-":
            return -atom()
        if token == "(":
            inside = total()
            if take() != ")":
                raise ValueError(expression)
            return inside
        if not token[0].isdigit():
            raise ValueError(expression)
        return Fraction(token)

    def power() -> Fraction:
        value = atom()
        return value ** int(power()) if tokens[:1] == ["^"] and take() else value

    def product() -> Fraction:
        value = power()
        while tokens and tokens[0] in ("*", "/", "mod"):
            operator, right = take(), power()
            value = {
                "*": lambda a, b: a * b,
                "/": lambda a, b: a / b,
                "mod": lambda a, b: a % b,
            }[operator](value, right)
        return value

    def total() -> Fraction:
        value = product()
        while tokens and tokens[0] in ("+", "-"):
            value = value + product() if take() == "+" else value - product()
        return value

    value = total()
    if tokens:
        raise ValueError(expression)
    return value


def equations(text: str) -> list[tuple[str, ...]]:
    """Chains of purely numeric expressions that the text says are equal."""
    runs = re.finditer(r"(?:mod(?![a-z])|[-+*/^(). =0-9])+", text)
    found = []
    for run in runs:
        sides = [side.strip(" .") for side in run.group().split("=")]
        # A side that touches a variable, such as the "3" of "3x", is not numeric.
        if text[run.end() : run.end() + 1].isalpha() and run.group()[-1] != " ":
            sides.pop()
        if sides and text[run.start() - 1 : run.start()].isalpha() and run.group()[0] != " ":
            sides.pop(0)
        # A binary operator in front means that a variable stands before it.
        numeric = [side for side in sides if re.match(r"\(*-?\d", side) and not is_open(side)]
        if len(numeric) > 1:
            found.append(tuple(numeric))
    return found


def is_open(side: str) -> bool:
    return side.count("(") != side.count(")") or side[-1] in "+-*/^"


def numbers(text: str) -> list[Fraction]:
    return [Fraction(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so 3 + 4 = 7.", [("3 + 4", "7")]),
        ("x = 12 / 4 = 3", [("12 / 4", "3")]),
        ("5x + 3 = 10", []),
        ("9 = 4 + 2x", []),
        ("D = (-5)^2 - 4 * 6 = 1", [("(-5)^2 - 4 * 6", "1")]),
        ("45 mod 7 = 3 and 2 = 2", [("45 mod 7", "3"), ("2", "2")]),
    ],
)
def test_equation_finder_of_these_tests(text: str, expected: list[tuple[str, ...]]) -> None:
    assert equations(text) == expected


def test_evaluator_of_these_tests_follows_precedence() -> None:
    assert evaluate("2 + 3 * 4^2 - (-6) / 4") == Fraction(103, 2)
    assert evaluate("3 * 5 mod 4") == 3
    with pytest.raises(ValueError, match=r"^3 x 4$"):
        evaluate("3 x 4")


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_every_equation_of_every_family_is_exact(seed: int) -> None:
    for family in FAMILIES:
        problem = family(Draw(seed))
        lines = {line: equations(line) for line in (*problem.working, problem.conclusion)}
        assert sum(map(len, lines.values())) >= 2, problem.text
        for line, chains in lines.items():
            for chain in chains:
                assert len({evaluate(side) for side in chain}) == 1, (chain, problem.text)
            # Without a variable in the line, no equation of it may have escaped the check.
            if not re.search(r"(?<![a-z'])[a-zD](?![a-z])", line.replace("and a ", "and ")):
                assert sum(len(chain) - 1 for chain in chains) == line.count("="), line


def sum_of_two(problem: Worked) -> bool:
    a, b = numbers(problem.question)
    return Fraction(problem.answer) == a + b


def product_of_two(problem: Worked) -> bool:
    a, b = numbers(problem.question)
    return Fraction(problem.answer) == a * b


def quotient_and_rest(problem: Worked) -> bool:
    dividend, divisor = numbers(problem.question)
    quotient, rest = numbers(problem.answer)
    return divisor * quotient + rest == dividend and 0 <= rest < divisor


def sum_of_fractions(problem: Worked) -> bool:
    found = re.search(r"(\d+/\d+) ([+-]) (\d+/\d+)", problem.question)
    assert found is not None
    left, right = Fraction(found[1]), Fraction(found[3])
    return str(left + right if found[2] == "+" else left - right) == problem.answer


def side_value(side: str, name: str, value: int) -> Fraction:
    """A linear side such as ``3x - 5`` at one value of its variable."""
    spelled = re.sub(rf"(\d){name}", r"\1 * " + name, side)
    return evaluate(spelled.replace(name, f"({value})"))


def only_root_of_linear_equation(problem: Worked) -> bool:
    name = problem.answer[0]
    found = re.search(rf"(\d+{name}[-+ 0-9]*) = (\d*{name}[-+ 0-9]*)", problem.question)
    assert found is not None
    left, right = found[1].strip(), found[2].strip()
    roots = [
        value
        for value in range(-50, 51)
        if side_value(left, name, value) == side_value(right, name, value)
    ]
    return problem.answer == f"{name} = {roots[0]}" and len(roots) == 1


def only_point_of_both_lines(problem: Worked) -> bool:
    lines = re.findall(r"(\d+)x \+ (\d+)y = (-?\d+)", problem.question)
    points = [
        (x, y)
        for x, y in itertools.product(range(-15, 16), repeat=2)
        if all(int(a) * x + int(b) * y == int(c) for a, b, c in lines)
    ]
    return len(lines) == 2 and [problem.answer] == [f"x = {x}, y = {y}" for x, y in points]


def whole_roots_of_parabola(problem: Worked) -> bool:
    found = re.search(r"x\^2( [-+] \d*x)?( [-+] \d+)? = 0", problem.question)
    assert found is not None
    middle = (found[1] or "0").replace(" ", "").replace("x", "")
    p = int(middle + "1") if middle in ("+", "-") else int(middle)
    q = int((found[2] or "0").replace(" ", ""))
    roots = [x for x in range(-200, 201) if x * x + p * x + q == 0]
    return problem.answer == " or ".join(f"x = {x}" for x in roots)


def sum_of_arithmetic_sequence(problem: Worked) -> bool:
    first, step, terms = map(int, numbers(problem.question))
    return int(problem.answer) == sum(range(first, first + step * terms, step))


def sum_of_geometric_sequence(problem: Worked) -> bool:
    first, ratio, terms = map(int, numbers(problem.question))
    return int(problem.answer) == sum(first * ratio**index for index in range(terms))


def divisor_and_multiple_by_search(problem: Worked) -> bool:
    a, b = map(int, numbers(problem.question))
    divisor = next(d for d in range(min(a, b), 0, -1) if a % d == b % d == 0)
    multiple = next(m for m in itertools.count(a, a) if m % b == 0)
    return problem.answer == f"gcd {divisor}, lcm {multiple}"


def primes_and_divisors_by_search(problem: Worked) -> bool:
    (number,) = map(int, numbers(problem.question))
    found = re.fullmatch(r"(\d+) = (.*), with (\d+) divisors", problem.answer)
    assert found is not None
    primes = [int(factor.split("^")[0]) for factor in found[2].split(" * ")]
    return (
        evaluate(found[2]) == number == int(found[1])
        and all(p % d for p in primes for d in range(2, p))
        and int(found[3]) == sum(number % d == 0 for d in range(1, number + 1))
    )


def power_modulo(problem: Worked) -> bool:
    base, exponent, modulus = map(int, numbers(problem.question))
    return int(problem.answer) == pow(base, exponent, modulus)


def price_after_discount_and_tax(problem: Worked) -> bool:
    price, off, tax = numbers(problem.question)
    return numbers(problem.answer) == [price * (1 - off / 100) * (1 + tax / 100)]


def change_from_note(problem: Worked) -> bool:
    many, cost, more, dear, paid = numbers(problem.question)
    return numbers(problem.answer) == [paid - many * cost - more * dear] and paid >= 0


def meeting_hour_by_hour(problem: Worked) -> bool:
    distance, first, second = map(int, numbers(problem.question))
    here, there, hours = 0, distance, 0
    while here < there:
        here, there, hours = here + first, there - second, hours + 1
    return here == there and numbers(problem.answer) == [hours, here]


def time_together(problem: Worked) -> bool:
    a, b = numbers(problem.question)
    return Fraction(problem.answer.split()[0]) * (1 / a + 1 / b) == 1


CHECKS = {
    "addition": sum_of_two,
    "multiplication": product_of_two,
    "division": quotient_and_rest,
    "fraction_sum": sum_of_fractions,
    "linear_equation": only_root_of_linear_equation,
    "linear_system": only_point_of_both_lines,
    "quadratic": whole_roots_of_parabola,
    "arithmetic_sequence": sum_of_arithmetic_sequence,
    "geometric_sequence": sum_of_geometric_sequence,
    "common_divisor": divisor_and_multiple_by_search,
    "factorisation": primes_and_divisors_by_search,
    "modular_power": power_modulo,
    "percentage": price_after_discount_and_tax,
    "shopping": change_from_note,
    "travel": meeting_hour_by_hour,
    "shared_work": time_together,
}


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_answer_follows_from_the_question_by_another_route(family: object) -> None:
    assert callable(family)
    check = CHECKS[family.__name__]

    @given(seed=SEEDS)
    @settings(max_examples=40, deadline=None)
    def holds(seed: int) -> None:
        problem = family(Draw(seed))
        assert problem.family == family.__name__
        assert check(problem), problem.text
        assert problem.answer in problem.conclusion
        assert problem.text.rstrip().endswith(problem.conclusion)

    holds()


def test_no_line_of_words_is_shared_between_families() -> None:
    wordings: dict[str, set[str]] = defaultdict(set)
    questions: dict[str, set[str]] = defaultdict(set)
    for problem in itertools.islice(worked_problems(seed=3), 2_000):
        masked = re.sub(r"[\d.]+", "#", problem.text)
        lines = {line for line in masked.splitlines() if re.search("[a-z]{3}", line)}
        wordings[problem.family] |= lines
        questions[problem.family].add(re.sub(r"\d.*", "", problem.question)[:12])
    assert set(wordings) == set(NAMES)
    for one, other in itertools.combinations(wordings, 2):
        assert not wordings[one] & wordings[other], (one, other)
    assert min(map(len, questions.values())) >= 2


@given(seed=SEEDS)
@settings(max_examples=20, deadline=None)
def test_a_seed_fixes_the_documents_and_fewer_are_a_prefix(seed: int) -> None:
    documents = worked_math(seed=seed, num_documents=30)
    assert worked_math(seed=seed, num_documents=12) == documents[:12]
    assert len(set(documents)) == 30


def test_families_are_about_equally_frequent() -> None:
    counts: dict[str, int] = defaultdict(int)
    for problem in itertools.islice(worked_problems(seed=0), 3_200):
        counts[problem.family] += 1
    # 200 expected of each, standard deviation 13.7.
    assert all(abs(count - 200) < 5 * 13.7 for count in counts.values()), counts
