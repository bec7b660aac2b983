"""Secure summation in four messages: keys, shares, masked uploads, opened shares.

The client's functions read and write JSON headers and keep their secrets in the
client's folder; `secure_statistics` is the server's side. Both call the functions of
`masks` and `keys`. A client masks a sum at most once and opens shares at most once per
session.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fuprune.errors import InputError, TooFewClientsError
from fuprune.flower import node as nodes
from fuprune.flower.keys import (
    KEY_BYTES,
    Keys,
    Party,
    PublicKeys,
    agree_secret,
    make_directory,
    make_keys,
    open_shares,
    public_keys,
    share_keys,
)
from fuprune.flower.masks import mask_upload, reveal_shares, unmask
from fuprune.flower.node import Node
from fuprune.unlearning.activations import check_statistics
from fuprune.unlearning.protocol import UnlearnError
from fuprune.unlearning.secure_sum import decode

# By client, header and arrays: of requests, and of what came back.
Messages = Mapping[int, tuple[Mapping[str, Any], Any]]
UPLOAD = "query.class_statistics"  # the one message that is about the network


def publish_keys(secure: Any, node: Node) -> dict[str, Any]:
    """A client's first message: fresh public keys; their secret halves stay here."""
    keys = make_keys()
    kept = {"keys": [key.hex() for key in keys]}
    nodes.keep_secret(node.folder, _session(secure), kept)
    return {"keys": [key.hex() for key in public_keys(keys)]}


def seal_shares(secure: Any, node: Node) -> dict[str, Any]:
    """A client's second message: sealed shares of its secrets, by holder."""
    session = _session(secure)
    kept = nodes.recall_secret(node.folder, session)
    if "told" in kept:
        raise InputError(f"secure sum {session} has its directory already.")
    kept["told"] = secure
    with _reading("directory"):
        party = _party(kept)
    threshold, number = party.directory.threshold, len(party.directory.public_keys)
    if threshold < fewest(number):
        raise InputError(
            f"threshold {threshold} of {number} lets two groups of clients open "
            f"different shares, or shows a sum of two; it takes {fewest(number)}. "
            "Refuse the sum."
        )
    sealed = share_keys(party)
    nodes.keep_secret(node.folder, session, kept)
    return {"sealed": [box.hex() for box in sealed]}


def fewest(number: int) -> int:
    """How many of n clients a sum takes: a majority, and three at least.

    Of a sum of two each would know the other's part.
    """
    return max(3, number // 2 + 1)


def masked_upload(upload: Any, secure: Any, node: Node, question: str) -> np.ndarray:
    """A client's third message: its upload under masks, [D] uint64.

    `question` says what it is the answer to, which goes into one sum alone.
    """
    session = _session(secure)
    kept, party = _recall(session, node)
    nodes.answer_once(node.folder, question, look=True)
    kept["question"] = question
    # Two uploads under the same masks would show their difference in the clear.
    if "boxes" in kept:
        raise InputError(f"secure sum {session} has this client's upload already.")
    words = mask_upload(upload, party)
    with _reading("boxes"):
        kept["boxes"] = dict(secure["boxes"])
        boxes = _boxes(kept)
    # Opened before anything is sent: a false share ends the sum here.
    open_shares(party, boxes)
    nodes.keep_secret(node.folder, session, kept)
    return words


def reveal(secure: Any, node: Node) -> dict[str, Any]:
    """A client's last message: one share for each client, and then it knows nothing."""
    session = _session(secure)
    kept, party = _recall(session, node)
    held = open_shares(party, _boxes(kept))
    sent = _senders(secure, party)
    shown = reveal_shares(held, party.directory, sent=sent)
    # Before the answer leaves: a second question, with other senders, would open the
    # other half of somebody's secrets, and a second sum, without one of the senders,
    # would show by the difference what that one sent.
    nodes.answer_once(node.folder, kept.get("question", session))
    nodes.drop_secret(node.folder, session)
    return {"shares": {str(owner): hex(share) for owner, share in shown.items()}}


def secure_statistics(
    exchange: Callable[[str, Messages], Messages],
    requests: Messages,
    template: Any,
    sizes: Mapping[int, int],
) -> Any:
    """The server's side: the sum of what clients uploaded, and nothing else of it.

    Args:
      exchange: sends messages of a kind and gives back the replies that came.
      requests: for statistics, without their part on masks, to those who take part.
      template: `ClassActivations` of arrays or `jax.ShapeDtypeStruct`s.
      sizes: how many images each client says it has.

    Raises:
      TooFewClientsError: fewer than three, or than a majority, stayed to the end.
      UnlearnError: the sum cannot be one of class statistics, so a client spoiled it.
    """
    session, members = secrets.token_hex(16), list(requests)

    # Clients are known by their place among the members.
    def tell(kind: str, parts: Mapping[int, Mapping[str, Any]]) -> Messages:
        sent = {}
        for i, part in parts.items():
            header, arrays = requests[members[i]] if kind == UPLOAD else ({}, None)
            secure = {"session": session, **part}
            sent[members[i]] = {**header, "secure": secure}, arrays
        return {members.index(k): reply for k, reply in exchange(kind, sent).items()}

    replies = tell("query.secure_keys", {i: {} for i in range(len(members))})
    # Unreadable keys count as no answer: whoever sent them is left out before anybody
    # depends on it.
    published = dict(sorted(_readable(replies, _public_keys).items()))
    members = [members[i] for i in published]
    number = len(members)
    if number < fewest(number):
        raise TooFewClientsError(
            f"{number} clients take part in a secure sum, which takes three at least: "
            "of a sum of two, each knows the other's part."
        )
    directory = make_directory(list(published.values()), fewest(number), session)
    places = range(len(members))
    told = {
        "public": [[key.hex() for key in keys] for keys in directory.public_keys],
        "threshold": directory.threshold,
    }
    replies = tell("query.secure_shares", {i: {**told, "position": i} for i in places})
    sealed = _readable(replies, lambda header: _sealed(header, len(members)))
    # A client whose shares are missing could not be made up for, and nothing is masked
    # yet: the others start afresh without it.
    if len(sealed) < number:
        left = {members[i]: requests[members[i]] for i in sealed}
        return secure_statistics(exchange, left, template, sizes)
    boxes = {i: {"boxes": {str(o): sealed[o][i].hex() for o in places}} for i in places}
    size = sum(x.size for x in jax.tree.leaves(template))
    masked = {
        i: words
        for i, (_, words) in tell(UPLOAD, boxes).items()
        if isinstance(words, np.ndarray)
        # Sums are modulo 2^64, so that masks cancel exactly.
        and words.dtype == np.uint64
        and words.shape == (size,)
    }
    # Those who sent open shares, by which the masks come off the sum.
    sent = sorted(masked)
    replies = tell("query.secure_reveal", {i: {"sent": sent} for i in sent})
    total = unmask(masked, directory, _readable(replies, _shares))
    words = jax.device_get(decode(total, template))
    # Only the sum can be checked: single uploads are hidden by design.
    held = sum(sizes[members[i]] for i in masked)
    reason = check_statistics(words, template, held)
    if reason is not None:
        raise UnlearnError(
            f"the secure sum cannot be one of class statistics ({reason}), and whose "
            "upload spoiled it does not show; look at what each client runs, or choose "
            "a method that reads no class statistics, such as fine_tune_only."
        )
    return words


_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError)


def _readable(replies: Messages, read: Callable[[Any], Any]) -> dict[int, Any]:
    """By client, what `read` finds in its header; unreadable ones are left out."""
    found = {}
    for client, (header, _) in replies.items():
        with contextlib.suppress(*_UNREADABLE):
            found[client] = read(header)
    return found


def _public_keys(header: Mapping[str, Any]) -> PublicKeys:
    """Keys that the others can use; with any other they would refuse the sum."""
    keys = PublicKeys(*map(bytes.fromhex, header["keys"]))
    for key in keys:
        agree_secret(secrets.token_bytes(KEY_BYTES), key)
    if keys.mask == keys.sealing:
        raise InputError("a client has one key for two purposes.")
    return keys


def _sealed(header: Mapping[str, Any], number: int) -> list[bytes]:
    boxes = list(map(bytes.fromhex, header["sealed"]))
    if len(boxes) != number:
        raise InputError(f"{len(boxes)} boxes came for {number} clients.")
    return boxes


def _shares(header: Mapping[str, Any]) -> dict[int, int]:
    return {int(owner): int(value, 16) for owner, value in header["shares"].items()}


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Says what of a request it is that a client cannot read."""
    try:
        yield
    except InputError:
        raise
    except _UNREADABLE as error:
        raise InputError(f"the {what} of a secure sum cannot be read.") from error


def _boxes(kept: Mapping[str, Any]) -> dict[int, bytes]:
    boxes = kept.get("boxes", {})
    return {int(owner): bytes.fromhex(box) for owner, box in boxes.items()}


def _senders(secure: Any, party: Party) -> set[int]:
    """Whose uploads the server says it has: of this sum, this client among them."""
    sent, number = secure.get("sent"), len(party.directory.public_keys)
    known = isinstance(sent, list) and all(type(i) is int for i in sent)
    # This client knows that it has sent. A list without it would ask the others for its
    # private key, which takes one of the two kinds of masks off its upload.
    if not known or party.client not in sent or not set(sent) <= set(range(number)):
        raise InputError(
            f"the senders of a secure sum are {sent!r:.80}, but must be among its "
            f"{number} clients, and client {party.client} has sent; refuse the sum."
        )
    return set(sent)


def _recall(session: str, node: Node) -> tuple[dict[str, Any], Party]:
    kept = nodes.recall_secret(node.folder, session)
    if "told" not in kept:
        raise InputError(f"secure sum {session} has no directory yet.")
    return kept, _party(kept)


def _party(kept: Mapping[str, Any]) -> Party:
    """This client, by its keys and what the server told it of the others."""
    told, keys = kept["told"], Keys(*map(bytes.fromhex, kept["keys"]))
    published = [PublicKeys(*map(bytes.fromhex, pair)) for pair in told["public"]]
    directory = make_directory(published, int(told["threshold"]), told["session"])
    return Party(int(told["position"]), keys, directory)


def _session(secure: Any) -> Any:
    """The name of a sum, if the request has one; `nodes` looks at what it is."""
    return secure.get("session") if isinstance(secure, dict) else None
