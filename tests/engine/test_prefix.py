"""Keys of cached prefixes name the salt, the block's tokens and every token before, and no more."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import BLOCK
from engine.prefix import KEY_BYTES, KeyChain, block_keys, extend, root, salt_of

PROMPT = list(range(100, 100 + 3 * BLOCK + 5))

prompts = st.lists(st.integers(0, 2**31 - 1), max_size=4 * BLOCK + 3)


def by_the_book(tokens: list[int], salt: bytes) -> list[bytes]:
    """The keys as the docstring defines them."""
    key = hashlib.blake2b(salt, digest_size=16, person=b"octavo root").digest()
    keys = []
    for start in range(0, len(tokens) // 16 * 16, 16):
        block = key + struct.pack("<16i", *tokens[start : start + 16])
        key = hashlib.blake2b(block, digest_size=16, person=b"octavo block").digest()
        keys.append(key)
    return keys


@given(prompts, st.binary(max_size=300))
def test_keys_are_chained_hashes_of_salt_and_full_blocks(tokens: list[int], salt: bytes) -> None:
    assert block_keys(tokens, salt) == by_the_book(tokens, salt)


@given(prompts)
def test_a_longer_prompt_begins_with_the_keys_of_a_shorter_one(tokens: list[int]) -> None:
    shorter = tokens[: len(tokens) // 2]
    keys = block_keys(shorter, b"")
    assert len(keys) == len(shorter) // BLOCK
    assert block_keys(tokens, b"")[: len(keys)] == keys


@pytest.mark.parametrize("position", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_another_token_changes_the_keys_from_its_block_on(position: int) -> None:
    other = PROMPT.copy()
    other[position] += 1
    same = [a == b for a, b in zip(block_keys(PROMPT, b""), block_keys(other, b""), strict=True)]
    block = position // BLOCK
    assert same == [True] * block + [False] * (3 - block)


def test_tokens_beyond_the_last_full_block_change_no_key() -> None:
    assert block_keys(PROMPT, b"") == block_keys(PROMPT[: 3 * BLOCK], b"")


def test_another_salt_changes_every_key() -> None:
    assert not set(block_keys(PROMPT, b"")) & set(block_keys(PROMPT, b"tenant"))


def test_equal_blocks_at_different_places_have_different_keys() -> None:
    assert len(set(block_keys([7] * (5 * BLOCK), b""))) == 5


def test_a_salt_made_of_a_block_does_not_pass_for_one() -> None:
    parent = root(b"")
    block = PROMPT[:BLOCK]
    assert root(parent + struct.pack(f"<{BLOCK}i", *block)) != extend(parent, block)


def test_keys_are_the_same_in_every_process() -> None:
    assert root(b"").hex() == "fb3af895cc9c0da1fdb646e486ae519e"
    assert block_keys(range(BLOCK), b"salt")[0].hex() == "29b2d5899049ef640021988180cc0fc5"
    assert len(root(b"")) == KEY_BYTES


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK + 1])
def test_only_a_full_block_has_a_key(count: int) -> None:
    with pytest.raises(ValueError, match=f"not {count}"):
        extend(root(b""), [0] * count)


@given(prompts, st.lists(st.integers(1, 40), max_size=4))
def test_a_chain_that_grows_has_the_keys_of_the_whole(tokens: list[int], cuts: list[int]) -> None:
    chain = KeyChain(b"s")
    grown = []
    for end in [*sorted(cuts), len(tokens)]:
        grown += chain.grow(tokens[: min(end, len(tokens))])
    assert grown == chain.keys == block_keys(tokens, b"s")


def test_a_chain_goes_on_from_the_keys_of_the_prompt() -> None:
    chain = KeyChain(b"s", block_keys(PROMPT, b"s"))
    tokens = PROMPT + [1] * BLOCK
    assert chain.grow(PROMPT) == []
    assert chain.grow(tokens) == block_keys(tokens, b"s")[3:]
    assert chain.grow(tokens) == []


def test_a_forked_chain_goes_its_own_way() -> None:
    chain = KeyChain(b"s", block_keys(PROMPT, b"s"))
    twin = chain.fork()
    left, right = PROMPT + [1] * BLOCK, PROMPT + [2] * BLOCK
    chain.grow(left)
    twin.grow(right)
    assert chain.keys == block_keys(left, b"s")
    assert twin.keys == block_keys(right, b"s")


texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=3)


@given(texts, texts)
def test_different_parts_make_different_salts(some: list[str], others: list[str]) -> None:
    assert (salt_of(*some) == salt_of(*others)) == (some == others)


def test_moving_a_letter_between_parts_makes_another_salt() -> None:
    assert salt_of("ab", "c") != salt_of("a", "bc")
    assert salt_of("", "a") != salt_of("a", "") != salt_of("a")
