"""The ClientApp."""

from fuprune.flower.client_app import app

__all__ = ["app"]
