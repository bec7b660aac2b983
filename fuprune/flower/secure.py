"""Secure summation in four messages: keys, shares, masked uploads, opened shares.

The client's functions read and write JSON headers and keep their secrets in the
client's folder; `secure_statistics` is the server's side. Both call the functions of
`unlearning.secure_summation`, as a simulation does. A client masks a sum at most once
and opens shares at most once per session.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fuprune.errors import InputError
from fuprune.federated.aggregate import TooFewClientsError, check_statistics
from fuprune.flower import node as nodes
from fuprune.flower.node import Node
from fuprune.unlearning.protocol import UnlearnError
from fuprune.unlearning.secret_sharing import Share
from fuprune.unlearning.secure_summation import (
    decode,
    mask_upload,
    reveal_shares,
    unmask,
)
from fuprune.unlearning.summation_keys import (
    Directory,
    Keys,
    PublicKeys,
    make_directory,
    make_keys,
    open_shares,
    public_keys,
    share_keys,
)

# (kind, header by client) -> replies by client, arrays included
Ask = Callable[[str, Mapping[int, dict[str, Any]]], Mapping[int, tuple[dict, Any]]]


def publish_keys(secure: Any, node: Node) -> dict[str, Any]:
    """A client's first message: fresh public keys; their secret halves stay here."""
    session = _session(secure)
    keys = make_keys()
    nodes.keep_secret(node.folder, session, {"keys": [k.hex() for k in keys]})
    return {"keys": [k.hex() for k in public_keys(keys)]}


def seal_shares(secure: Any, node: Node) -> dict[str, Any]:
    """A client's second message: sealed shares of its secrets, by holder."""
    session = _session(secure)
    kept = nodes.recall_secret(node.folder, session)
    if "directory" in kept:
        raise InputError(f"secure sum {session} has its directory already.")
    directory = _directory(secure, session)
    if directory.threshold <= len(directory.public_keys) // 2:
        raise InputError(
            f"threshold {directory.threshold} of {len(directory.public_keys)} lets two "
            "groups of clients open different shares; refuse the sum."
        )
    position = _position(secure)
    keys = Keys(*map(bytes.fromhex, kept["keys"]))
    sealed = share_keys(position, keys, directory)
    described = {"public": secure["public"], "threshold": secure["threshold"]}
    kept |= {"directory": described, "position": position}
    nodes.keep_secret(node.folder, session, kept)
    return {"sealed": [box.hex() for box in sealed]}


def masked_upload(upload: Any, secure: Any, node: Node) -> np.ndarray:
    """A client's third message: its upload under masks, [D] uint64."""
    session = _session(secure)
    kept, keys, directory = _recall(session, node)
    # Two uploads under the same masks would show their difference in the clear.
    if kept.get("sent"):
        raise InputError(f"secure sum {session} has this client's upload already.")
    words = mask_upload(upload, kept["position"], keys, directory)
    boxes = _boxes(secure.get("boxes"))
    # Opened before anything is sent: a false share ends the sum here.
    open_shares(kept["position"], keys, directory, boxes)
    kept |= {"sent": True, "boxes": {str(o): box.hex() for o, box in boxes.items()}}
    nodes.keep_secret(node.folder, session, kept)
    return words


def reveal(secure: Any, node: Node) -> dict[str, Any]:
    """A client's last message: one share for each client, and then it knows nothing."""
    session = _session(secure)
    kept, keys, directory = _recall(session, node)
    boxes = _boxes(kept.get("boxes", {}))
    held = open_shares(kept["position"], keys, directory, boxes)
    sent = _senders(secure, kept["position"], directory)
    shown = reveal_shares(held, directory, sent=sent)
    # Before the answer leaves: a second question, with other senders, would open the
    # other half of somebody's secrets.
    nodes.drop_secret(node.folder, session)
    return {"shares": {str(owner): hex(share.value) for owner, share in shown.items()}}


def secure_statistics(
    ask: Ask,
    clients: Sequence[int],
    request: Mapping[str, Any],
    template: Any,
    sizes: Mapping[int, int],
) -> Any:
    """The server's side: the sum of what clients uploaded, and nothing else of it.

    Args:
      ask: sends headers and gives back the replies that came.
      clients: ids of those who are to take part.
      request: header of the request for statistics, without its part on masks.
      template: `ClassActivations` of arrays or `jax.ShapeDtypeStruct`s.
      sizes: how many images each client says it has.

    Raises:
      TooFewClientsError: fewer than a majority of the clients stayed to the end.
      UnlearnError: the sum cannot be one of class statistics, so a client spoiled it.
    """
    session = secrets.token_hex(16)
    opened = {"session": session}
    replies = ask("query.secure_keys", {k: {"secure": opened} for k in clients})
    published = {k: _public_keys(header) for k, (header, _) in replies.items()}
    # Unreadable keys count as no answer: whoever sent them is left out before anybody
    # depends on it.
    published = {k: keys for k, keys in published.items() if keys is not None}
    members = [k for k in clients if k in published]
    # From here on clients are known by their place among the members.
    directory = make_directory([published[k] for k in members], session=session)
    told = {
        "session": session,
        "public": [[k.hex() for k in published[m]] for m in members],
        "threshold": directory.threshold,
    }
    replies = ask(
        "query.secure_shares",
        {k: {"secure": {**told, "position": i}} for i, k in enumerate(members)},
    )
    found = {
        members.index(k): _sealed(header, len(members))
        for k, (header, _) in replies.items()
    }
    sealed = {i: boxes for i, boxes in found.items() if boxes is not None}
    # A client whose shares are missing could not be made up for: everybody must have
    # shared before anything is masked.
    if len(sealed) < len(members):
        missing = [k for i, k in enumerate(members) if i not in sealed]
        raise TooFewClientsError(
            f"clients {missing} left a secure sum before they had shared their keys; "
            "ask again."
        )
    boxes = {
        i: {str(o): sealed[o][i] for o in range(len(members))}
        for i in range(len(members))
    }
    replies = ask(
        "query.class_statistics",
        {
            k: {**request, "secure": {"session": session, "boxes": boxes[i]}}
            for i, k in enumerate(members)
        },
    )
    size = sum(int(np.prod(x.shape)) for x in jax.tree.leaves(template))
    masked = {
        members.index(k): words
        for k, (_, words) in replies.items()
        if isinstance(words, np.ndarray)
        # Sums are modulo 2^64, so that masks cancel exactly.
        and words.dtype == np.uint64
        and words.shape == (size,)
    }
    total = _open(ask, masked, members, directory)
    words = jax.device_get(decode(total, template))
    # Only the sum can be checked: single uploads are hidden by design.
    held = sum(sizes[members[i]] for i in masked)
    reason = check_statistics(words, template, held)
    if reason is not None:
        raise UnlearnError(
            f"the secure sum cannot be one of class statistics ({reason}), and whose "
            "upload spoiled it does not show; ask without privacy.secure_sum to find "
            "the client."
        )
    return words


def _open(ask: Ask, masked, members, directory: Directory) -> np.ndarray:
    """Asks those who sent to open shares, and takes the masks off the sum."""
    session = directory.session
    sent = sorted(masked)
    replies = ask(
        "query.secure_reveal",
        {members[i]: {"secure": {"session": session, "sent": sent}} for i in sent},
    )
    revealed = {
        members.index(k): _shares(header, members.index(k))
        for k, (header, _) in replies.items()
    }
    return unmask(masked, directory, revealed)


def _public_keys(header: Mapping[str, Any]) -> PublicKeys | None:
    try:
        mask, sealing = map(bytes.fromhex, header["keys"])
    except (KeyError, TypeError, ValueError):
        return None
    good = len(mask) == len(sealing) == 32
    return PublicKeys(mask, sealing) if good else None


def _sealed(header: Mapping[str, Any], number: int) -> list[str] | None:
    """A client's boxes, one for each of `number` clients; None if they are not that."""
    boxes: Any = header.get("sealed")
    if not isinstance(boxes, list) or len(boxes) != number:
        return None
    return boxes if all(isinstance(box, str) for box in boxes) else None


def _shares(header: Mapping[str, Any], holder: int) -> dict[int, Share]:
    """By owner, what a client opened; none if it cannot be read."""
    try:
        return {
            int(owner): Share(holder, int(value, 16))
            for owner, value in header["shares"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _boxes(boxes: Any) -> dict[int, bytes]:
    try:
        return {int(owner): bytes.fromhex(box) for owner, box in boxes.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError("the boxes of a secure sum cannot be read.") from error


def _senders(secure: Any, position: int, directory: Directory) -> set[int]:
    """Whose uploads the server says it has: of this sum, this client among them."""
    sent = secure.get("sent")
    everybody = range(len(directory.public_keys))
    if not isinstance(sent, list) or not all(type(i) is int for i in sent):
        raise InputError(f"senders are {sent!r:.80}, but must be whole numbers.")
    # This client knows that it has sent. A list without it would ask the others for its
    # private key, which takes one of the two kinds of masks off its upload.
    if position not in sent or not set(sent) <= set(everybody):
        raise InputError(
            f"the senders of a secure sum are {sent!r:.80}, but must be among its "
            f"{len(everybody)} clients, and client {position} has sent; refuse the sum."
        )
    return set(sent)


def _recall(session: str, node: Node) -> tuple[dict[str, Any], Keys, Directory]:
    kept = nodes.recall_secret(node.folder, session)
    if "directory" not in kept:
        raise InputError(f"secure sum {session} has no directory yet.")
    keys = Keys(*map(bytes.fromhex, kept["keys"]))
    return kept, keys, _directory(kept["directory"], session)


def _directory(told: Any, session: str) -> Directory:
    try:
        published = [PublicKeys(*map(bytes.fromhex, pair)) for pair in told["public"]]
        return make_directory(published, int(told["threshold"]), session)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("the directory of a secure sum cannot be read.") from error


def _session(secure: Any) -> str:
    if not isinstance(secure, dict) or not isinstance(secure.get("session"), str):
        raise InputError("a request of a secure sum has no session.")
    return secure["session"]


def _position(secure: Any) -> int:
    position = secure.get("position")
    if type(position) is not int:
        raise InputError(f"position is {position!r:.40}, but must be a whole number.")
    return position
