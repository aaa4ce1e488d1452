"""Stories with numbers: prices, purchases, journeys and shared work."""

from __future__ import annotations

from math import gcd

from suite.corpora.worked_math._worked import Draw, Worked, money

_NAMES = ("Ada", "Bela", "Chidi", "Dora", "Emre", "Fatou", "Goran", "Hana", "Ines", "Jun", "Kofi")
_GOODS = ("coat", "lamp", "bicycle", "desk", "camera", "guitar", "tent", "printer")
_ITEMS = ("notebooks", "apples", "stamps", "candles", "batteries", "bagels", "postcards", "mugs")
_JOBS = ("paint a fence", "mow a meadow", "sort the archive", "tile a kitchen", "fill a tank")
_PLACES = ("Lund", "Porto", "Graz", "Cork", "Basel", "Turku", "Nantes", "Split")


def percentage(draw: Draw) -> Worked:
    """A discount followed by a sales tax; both amounts are whole cents."""
    price, off, tax = 20 * draw.integer(2, 45), 5 * draw.integer(1, 12), draw.integer(2, 24)
    good, name = draw.pick(_GOODS), draw.pick(_NAMES)
    question = draw.pick(
        (
            f"A {good} is listed at {price} dollars. It is reduced by {off} percent, and then "
            f"{tax} percent sales tax is charged. What does {name} pay?",
            f"{name} sees a {good} for {price} dollars with {off} percent off. The till adds a "
            f"tax of {tax} percent. Find the final price.",
            f"Before the sale a {good} cost {price} dollars. The discount is {off} percent; on the "
            f"reduced price comes a tax of {tax} percent. How much is it now?",
        )
    )
    cut = price * off
    reduced = price * 100 - cut
    levy = reduced * tax // 100
    total = reduced + levy
    working = (
        f"The discount amounts to {price} * {off} / 100 = {money(cut)} dollars.",
        f"So the reduced price is {price} - {money(cut)} = {money(reduced)} dollars.",
        f"Tax is taken from that: {money(reduced)} * {tax} / 100 = {money(levy)} dollars.",
        f"Add the tax: {money(reduced)} + {money(levy)} = {money(total)} dollars.",
        draw.pick(("As a single factor, ", "In one go, "))
        + f"{price} * (100 - {off}) / 100 * (100 + {tax}) / 100 = {money(total)}.",
    )
    answer = f"{money(total)} dollars"
    conclusion = draw.pick((f"The {good} ends up at {answer}.", f"{name} is charged {answer}."))
    return Worked(
        family="percentage",
        question=question,
        working=working,
        conclusion=conclusion,
        answer=answer,
    )


def shopping(draw: Draw) -> Worked:
    """Two kinds of items bought together, and the change from a round note."""
    (this, that), name = draw.pick_two(_ITEMS), draw.pick(_NAMES)
    many, more = draw.integer(2, 12), draw.integer(2, 12)
    cost, dear = 5 * draw.integer(5, 120), 5 * draw.integer(5, 120)
    bill = many * cost + more * dear
    paid = next(note for note in (20, 50, 100, 200, 500) if note * 100 >= bill)
    question = draw.pick(
        (
            f"{name} buys {many} {this} at {money(cost)} dollars each and {more} {that} at "
            f"{money(dear)} dollars each, and hands over {paid} dollars. How much change is due?",
            f"On the list of {name} stand {many} {this} ({money(cost)} dollars apiece) and {more} "
            f"{that} ({money(dear)} dollars apiece). What comes back from {paid} dollars?",
            f"The shop sells {name} {many} {this} for {money(cost)} dollars a piece, plus {more} "
            f"{that} for {money(dear)} dollars a piece. The note has {paid} dollars on it. "
            "What is left?",
        )
    )
    working = (
        f"For the {this}: {many} * {money(cost)} = {money(many * cost)}",
        f"For the {that}: {more} * {money(dear)} = {money(more * dear)}",
        f"The bill reads {money(many * cost)} + {money(more * dear)} = {money(bill)}",
        f"From the note remains {paid} - {money(bill)} = {money(paid * 100 - bill)}",
        draw.pick(("Counting up from the bill: ", "Bill and change make the note: "))
        + f"{money(bill)} + {money(paid * 100 - bill)} = {paid}",
    )
    answer = f"{money(paid * 100 - bill)} dollars"
    conclusion = draw.pick((f"{name} gets {answer} back.", f"The change is {answer}."))
    return Worked(
        family="shopping",
        question=question,
        working=working,
        conclusion=conclusion,
        answer=answer,
    )


def travel(draw: Draw) -> Worked:
    """Two vehicles that drive towards each other and meet after whole hours."""
    (home, away), vehicle = draw.pick_two(_PLACES), draw.pick(("train", "truck", "bus", "cyclist"))
    low, high = (12, 30) if vehicle == "cyclist" else (45, 120)
    first, second, hours = draw.integer(low, high), draw.integer(low, high), draw.integer(2, 9)
    distance = (first + second) * hours
    question = draw.pick(
        (
            f"{home} and {away} are {distance} km apart. At noon a {vehicle} leaves {home} at "
            f"{first} km/h, and another leaves {away} towards it at {second} km/h. "
            f"After how many hours do they meet, and how far from {home}?",
            f"The road from {home} to {away} is {distance} km long. One {vehicle} starts in {home} "
            f"with {first} km/h, a second one in {away} with {second} km/h. When do they pass "
            f"each other, and at what distance from {home}?",
        )
    )
    closing = first + second
    working = (
        draw.pick(("The gap shrinks every hour by", "Together they cover per hour"))
        + f" {first} + {second} = {closing} km.",
        f"The whole gap is closed after {distance} / {closing} = {hours} hours.",
        f"By then the {vehicle} from {home} has gone {first} * {hours} = {first * hours} km,",
        f"and the one from {away} {second} * {hours} = {second * hours} km.",
        f"Both stretches cover the road: {first * hours} + {second * hours} = {distance}.",
    )
    answer = f"{hours} hours, {first * hours} km from {home}"
    conclusion = draw.pick((f"They meet after {answer}.", f"Meeting point: {answer}."))
    return Worked(
        family="travel",
        question=question,
        working=working,
        conclusion=conclusion,
        answer=answer,
    )


def shared_work(draw: Draw) -> Worked:
    """Two people who do one job together, each with a known time alone."""
    (one, other), job = draw.pick_two(_NAMES), draw.pick(_JOBS)
    a, b = draw.integer(2, 20), draw.integer(2, 20)
    question = draw.pick(
        (
            f"{one} needs {a} hours to {job}, while {other} needs {b} hours. "
            "How long do they take side by side?",
            f"Alone, {one} can {job} in {a} hours and {other} in {b} hours. "
            "How many hours does the job last if both work at once?",
            f"To {job} takes {one} {a} hours and {other} {b} hours. They team up. When is it done?",
        )
    )
    top, bottom = a + b, a * b
    shared = gcd(top, bottom)
    working = [
        f"In one hour {one} finishes 1/{a} of the job and {other} 1/{b} of it.",
        f"Over the common denominator {a} * {b} = {bottom} these rates are {b}/{bottom} "
        f"and {a}/{bottom}.",
        f"Joint rate: 1/{a} + 1/{b} = {top}/{bottom} of the job each hour.",
        draw.pick(("The time is the reciprocal of the rate", "Turn the rate upside down"))
        + f", namely {bottom}/{top} hours.",
    ]
    if shared > 1:
        working.append(f"Cancel {shared}: {bottom}/{top} = {bottom // shared}/{top // shared}.")
    top, bottom = top // shared, bottom // shared
    time = str(bottom) if top == 1 else f"{bottom}/{top}"
    working.append(
        f"In that time {one} does {time} / {a} = {_reduced(bottom, top * a)} of the job and "
        f"{other} the remaining {_reduced(bottom, top * b)}."
    )
    answer = f"{time} hours"
    conclusion = draw.pick((f"Side by side they need {answer}.", f"The team takes {answer}."))
    return Worked(
        family="shared_work",
        question=question,
        working=tuple(working),
        conclusion=conclusion,
        answer=answer,
    )


def _reduced(top: int, bottom: int) -> str:
    shared = gcd(top, bottom)
    return f"{top // shared}/{bottom // shared}"
