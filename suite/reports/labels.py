"""Labels beside dots, where they hide nothing; a label without room is left out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from suite.reports.style import INK

_SIZE = 7.5  # points
_CHARACTER = 0.56  # mean width of a character, as a share of the font size
_ACROSS, _UP = 6.0, 3.0  # from a dot to its label, in points
_DOT = 3.0  # radius, in points
_Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


def place_labels(
    ax: Axes,
    texts: Sequence[str],
    *,
    at: NDArray[np.float64],
    avoid: NDArray[np.float64],
    joined: bool,
) -> None:
    """Write each text beside its dot if it fits.

    The axes must have their final limits and place. Widths are estimated from the number of
    characters, so that the outcome does not depend on a renderer.

    Args:
        ax: axes that hold the dots and a legend.
        texts: labels.
        at: data coordinates of the labelled dots, ``[labels, 2]``.
        avoid: data coordinates of all dots, ``[dots, 2]``.
        joined: whether a line joins the labelled dots, which labels avoid too.
    """
    if not len(at):
        return
    assert ax.figure is not None
    pixel = ax.figure.dpi / 72.0
    frame = ax.get_window_extent()
    spots = np.asarray(ax.transData.transform(at))
    obstacles = [_around(x, y, _DOT * pixel) for x, y in ax.transData.transform(avoid)]
    if joined:
        obstacles += [_around(x, y, pixel) for x, y in _along(spots, 4.0 * pixel)]
    if (legend := ax.get_legend()) is not None:
        extent = legend.get_window_extent()
        obstacles.append((extent.x0, extent.y0, extent.x1, extent.y1))
    for place in np.lexsort((spots[:, 1], spots[:, 0])):
        x, y = spots[place]
        width = _CHARACTER * _SIZE * len(texts[place]) * pixel
        height = 1.2 * _SIZE * pixel
        # A front of minima has dominated dots above it on the right and none below on the left.
        for across, up in ((-1, -1), (1, 1), (1, -1), (-1, 1)):
            left = x + _ACROSS * pixel if across > 0 else x - _ACROSS * pixel - width
            bottom = y + _UP * pixel if up > 0 else y - _UP * pixel - height
            box = (left, bottom, left + width, bottom + height)
            inside = frame.x0 <= box[0] and box[2] <= frame.x1
            inside = inside and frame.y0 <= box[1] and box[3] <= frame.y1
            if inside and not any(_overlap(box, other) for other in obstacles):
                obstacles.append(box)
                ax.annotate(
                    texts[place],
                    (float(at[place, 0]), float(at[place, 1])),
                    xytext=(_ACROSS * across, _UP * up),
                    textcoords="offset points",
                    ha="left" if across > 0 else "right",
                    va="bottom" if up > 0 else "top",
                    fontsize=_SIZE,
                    color=INK,
                )
                break


def _around(x: float, y: float, radius: float) -> _Box:
    return (x - radius, y - radius, x + radius, y + radius)


def _along(spots: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """Points about ``gap`` apart on the line through ``spots``, left to right."""
    ordered = spots[np.lexsort((spots[:, 1], spots[:, 0]))]
    pieces = [
        np.linspace(start, end, max(2, int(np.hypot(*(end - start)) / gap)))
        for start, end in itertools.pairwise(ordered)
    ]
    return np.concatenate(pieces) if pieces else np.empty((0, 2))


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
