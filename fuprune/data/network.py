"""Asking whether an address answers, with a limit on how long the asking takes."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

PROBE_SECONDS = 5.0
_Result = TypeVar("_Result")


def why_unreachable(url: str, *, seconds: float = PROBE_SECONDS) -> str | None:
    """None if the address answers within the limit, else the reason in a few words.

    Asked with `requests`, which TFDS downloads with: the same proxies and the same
    certificates give the same verdict.
    """
    try:
        return within(seconds, lambda: _ask(url, seconds))
    except TimeoutError:
        return f"no answer within {seconds:g} s"


def within(seconds: float, question: Callable[[], _Result]) -> _Result:
    """The answer to a question, or TimeoutError; what the question raises is raised.

    A name resolver that hangs knows no timeout, so the question is put in a thread
    that can be left behind.
    """
    answer: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return answer.result(seconds)


def _ask(url: str, seconds: float) -> str | None:
    import requests

    try:
        with requests.head(url, timeout=seconds, allow_redirects=True) as response:
            status = response.status_code
    except requests.Timeout:
        return f"no answer within {seconds:g} s"
    except requests.ConnectionError:
        return "the host cannot be reached"
    except (requests.RequestException, ValueError, OSError) as error:
        return f"the request failed ({type(error).__name__})"
    # A server may answer only GET.
    if status < 400 or status in (405, 501):
        return None
    return f"the host answers with status {status}"
