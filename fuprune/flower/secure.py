"""Secure summation in four messages: keys, shares, masked uploads, opened shares.

The client's functions read and write JSON headers and keep their secrets in the
client's folder; `secure_statistics` is the server's side. A client masks a sum at most
once and opens shares at most once per session.
"""

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuprune.errors import InputError, TooFewClientsError, UnlearnError
from fuprune.files import write_whole
from fuprune.flower.masks import (
    KEY_BYTES,
    Directory,
    Keys,
    Party,
    PublicKeys,
    agree,
    fewest,
    make_keys,
    mask_upload,
    open_shares,
    public_keys,
    reveal_shares,
    share_keys,
    unmask,
)
from fuprune.flower.node import Node
from fuprune.unlearning.activations import check_statistics
from fuprune.unlearning.secure_sum import decode

# By client, header and arrays: of requests, and of what came back.
Messages = Mapping[int, tuple[Mapping[str, Any], Any]]
UPLOAD = "query.class_statistics"  # the one message that is about the network


def publish_keys(header: Mapping[str, Any], tree: Any, node: Node):
    """A client's first message: fresh public keys; their secret halves stay here."""
    keys = make_keys()
    _keep(node, header["secure"], {"keys": keys})
    return {"keys": public_keys(keys)}, None


def seal_shares(header: Mapping[str, Any], tree: Any, node: Node):
    """A client's second message: sealed shares of its secrets, by holder."""
    secure = header["secure"]
    kept = _recall(node, secure)
    if "told" in kept:
        raise InputError("this secure sum has its directory already.")
    kept["told"] = secure
    sealed = share_keys(_party(kept))
    _keep(node, secure, kept)
    return {"sealed": sealed}, None


def masked_upload(upload: Any, secure: Any, node: Node, question: str) -> np.ndarray:
    """A client's third message: its upload under masks, [D] uint64.

    `question` says what it is the answer to, which goes into one sum alone.
    """
    kept = _recall(node, secure)
    _answer_once(node, question, look=True)
    # Two uploads under the same masks would show their difference in the clear.
    if "boxes" in kept:
        raise InputError("this secure sum has this client's upload already.")
    words = mask_upload(upload, _party(kept))
    kept |= {"question": question, "boxes": secure["boxes"]}
    # Opened before anything is sent: a false share ends the sum here.
    _opened(kept)
    _keep(node, secure, kept)
    return words


def reveal(header: Mapping[str, Any], tree: Any, node: Node):
    """A client's last message: one share for each client, and then it knows nothing."""
    secure = header["secure"]
    kept = _recall(node, secure)
    party, sent = _party(kept), secure["sent"]
    # This client knows that it has sent. A list without it would ask the others for its
    # private key, which takes one of the two kinds of masks off its upload.
    if party.client not in sent or not {*sent} <= {*range(len(party.directory[0]))}:
        raise InputError(
            f"the senders of a secure sum are {sent!r:.80}, but must be of its clients "
            f"and include client {party.client}; refuse the sum."
        )
    shown = reveal_shares(_opened(kept), party.directory, {*sent})
    # Before the answer leaves: a second question, with other senders, would open the
    # other half of somebody's secrets, and a second sum, without one of the senders,
    # would show by the difference what that one sent.
    _answer_once(node, kept["question"])
    _path(node, secure).unlink()
    return {"shares": shown}, None


def secure_statistics(
    exchange: Callable[[str, Messages], Messages],
    requests: Messages,
    template: Any,
    sizes: Mapping[int, int],
) -> Any:
    """The server's side: the sum of what clients uploaded, and nothing else of it.

    `exchange` sends messages of a kind and gives back the replies that came; `requests`
    are for statistics; `template` is the form of a `ClassActivations`, and `sizes` are
    the images that each client says it has. Fewer clients than three, or than a
    majority, and a sum that a client spoiled are errors.
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
    members, number = [members[i] for i in published], len(published)
    if number < fewest(number):
        raise TooFewClientsError(
            f"{number} clients take part in a secure sum, which takes three at least: "
            "of a sum of two, each knows the other's part."
        )
    directory = Directory(tuple(published.values()), fewest(number), session)
    told = {"public": directory.public_keys, "threshold": directory.threshold}
    places = range(number)
    replies = tell("query.secure_shares", {i: {**told, "position": i} for i in places})
    sealed = _readable(replies, lambda header: _sealed(header, number))
    # A client whose shares are missing could not be made up for, and nothing is masked
    # yet: the others start afresh without it.
    if len(sealed) < number:
        left = {members[i]: requests[members[i]] for i in sealed}
        return secure_statistics(exchange, left, template, sizes)
    boxes = {i: {"boxes": {o: sealed[o][i] for o in places}} for i in places}
    size = sum(x.size for x in jax.tree.leaves(template))
    masked = {
        i: words
        for i, (_, words) in tell(UPLOAD, boxes).items()
        if isinstance(words, np.ndarray)
        # Sums are modulo 2^64, so that masks cancel exactly.
        and (words.dtype, words.shape) == (np.uint64, (size,))
    }
    # Those who sent open shares, by which the masks come off the sum.
    sent = sorted(masked)
    replies = tell("query.secure_reveal", {i: {"sent": sent} for i in sent})
    shown = _readable(replies, lambda header: _by_client(header["shares"], int))
    total = unmask(masked, directory, shown)
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


def _readable(replies: Messages, read: Callable[[Any], Any]) -> dict[int, Any]:
    """By client, what `read` finds in its header; unreadable ones are left out."""
    found = {}
    for client, (header, _) in replies.items():
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            found[client] = read(header)
    return found


def _public_keys(header: Mapping[str, Any]) -> PublicKeys:
    """Keys that the others can use; with any other they would refuse the sum."""
    keys = _published(header["keys"])
    for key in keys:
        agree(secrets.token_hex(KEY_BYTES), key, "")
    if keys.mask == keys.sealing:
        raise InputError("a client has one key for two purposes.")
    return keys


def _published(keys: Sequence[str]) -> PublicKeys:
    # In one spelling, so that equal keys are equal.
    return PublicKeys(*(bytes.fromhex(key).hex() for key in keys))


def _sealed(header: Mapping[str, Any], number: int) -> list[str]:
    boxes = [bytes.fromhex(box).hex() for box in header["sealed"]]
    if len(boxes) != number:
        raise InputError(f"{len(boxes)} boxes came for {number} clients.")
    return boxes


def _by_client(values: Mapping[str, Any], read: Callable = str) -> dict[int, Any]:
    return {int(client): read(value) for client, value in values.items()}


def _party(kept: Mapping[str, Any]) -> Party:
    """This client, by its keys and what the server told it of the others."""
    told = kept["told"]
    published = tuple(map(_published, told["public"]))
    directory = Directory(published, told["threshold"], told["session"])
    return Party(told["position"], Keys(*kept["keys"]), directory)


def _opened(kept: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    return open_shares(_party(kept), _by_client(kept["boxes"]))


def _keep(node: Node, secure: Any, secret: Mapping[str, Any]) -> None:
    """Keeps what one secure sum needs until its last message."""
    path = _path(node, secure)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, json.dumps(secret), mode=0o600)


def _recall(node: Node, secure: Any) -> dict[str, Any]:
    path = _path(node, secure)
    if not path.is_file():
        raise InputError(
            f"secure sum {path.stem} is unknown here, or was answered before; start "
            "another one."
        )
    return json.loads(path.read_text("utf-8"))


def _path(node: Node, secure: Mapping[str, Any]) -> Path:
    session = secure["session"]
    if not (isinstance(session, str) and session.isalnum()):
        raise InputError(f"session is {session!r:.80}, but must be letters and digits.")
    return node.folder / "sums" / f"{session}.json"


def _answer_once(node: Node, question: str, *, look: bool = False) -> None:
    """Notes that the answer to a question goes into a sum that is opened.

    Two sums of the same statistics, of other clients each, differ by a client's own.
    With `look` it only looks whether it may.
    """
    name = hashlib.sha256(question.encode()).hexdigest()
    path = node.folder / "sums" / "answered" / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        if not look or path.exists():
            path.touch(exist_ok=False)
    except FileExistsError:
        raise InputError(
            "this client's statistics of this model are in a secure sum already; two "
            "sums would show by their difference what one client sent."
        ) from None
