"""The kernels' build, started before the imports that take a run as long."""

from fuprune import config as configuration


def start(config: configuration.Config) -> None:
    """Begins to build the kernels in the background, if a run of `config` needs them.

    A network of the user's own, named as module:factory, has its own convolutions.
    """
    if config.runtime.conv != "xla" and ":" not in config.model.name:
        # JAX takes most of a second to import, and the command line's checks, which
        # import this module, do not wait for it.
        from fuprune.kernels import library

        library.start_build()
