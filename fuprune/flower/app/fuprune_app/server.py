"""The ServerApp."""

from fuprune.flower.server_app import app

__all__ = ["app"]
