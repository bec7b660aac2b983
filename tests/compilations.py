"""How many XLA programs a piece of code has compiled."""

import contextlib

import jax

EVENT = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def counted():
    """Yields a list that grows by the name of each program compiled inside."""
    programs: list[str] = []

    def listen(event, duration, fun_name="", **_):
        if event == EVENT:
            programs.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield programs
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
