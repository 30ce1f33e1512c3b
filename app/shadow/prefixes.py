"""What was found in the prefix cache, told by what prompts begin with.

A simulation knows the blocks of prompts by name. Blocks of answers have names, too, but nobody
keeps them: they are found where a later prompt goes on from one.

    first prompt    a b
    its answer          c d          named by what comes next:
    second prompt   a b c d e f      of which a b c d were found

And what was found although nobody of late had it must have been there before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from app.shadow.traffic import Course
from engine.batch import BLOCK
from engine.prefix import KEY_BYTES

Keys = Sequence[bytes]


def keys_of(course: Course) -> list[bytes]:
    """The names of a prompt's full blocks."""
    keys = course.request.keys
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def answers_of(courses: Sequence[Course]) -> dict[int, Keys]:
    """The names of the blocks of answers, by place; only of those that somebody went on from."""
    found: dict[int, Keys] = {}
    ends: dict[bytes, int] = {}
    for place, course in enumerate(courses):
        keys = keys_of(course)
        cached = keys[: course.cached // BLOCK]
        for count in range(len(cached), 0, -1):
            if (owner := ends.get(cached[count - 1])) is not None:
                if count < len(cached):
                    found.setdefault(owner, cached[count:])
                break
        if keys:
            ends[keys[-1]] = place
    return found


def there_before(courses: Sequence[Course], answers: Mapping[int, Keys]) -> Iterator[Keys]:
    """The names of blocks that were found and that nobody of these made: each chain once.

    Who had begun when a stretch did has its blocks anyway.
    """
    known: set[bytes] = set()
    for place, course in enumerate(courses):
        keys = keys_of(course)
        cached = keys[: course.cached // BLOCK]
        if cached and not course.had and cached[-1] not in known:
            yield cached
        known.update(keys)
        known.update(answers.get(place, ()))
