"""Asking whether an address answers, with a limit on how long the asking takes."""

import concurrent.futures
import threading

PROBE_SECONDS = 5.0


def why_unreachable(url: str, *, seconds: float = PROBE_SECONDS) -> str | None:
    """None if the address answers within the limit, else the reason in a few words.

    Asked with `requests`, which TFDS downloads with: the same proxies and the same
    certificates give the same verdict.
    """
    answer: concurrent.futures.Future[str | None] = concurrent.futures.Future()
    # A name resolver that hangs knows no timeout: the thread can be left behind.
    threading.Thread(
        target=lambda: answer.set_result(_ask(url, seconds)), daemon=True
    ).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        return f"no answer within {seconds:g} s"


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
