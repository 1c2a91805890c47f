"""The channel to a Spark Connect server: with the token, encrypted to another machine, without a proxy to this one."""

from collections.abc import Iterable

from pyspark.sql.connect.client import DefaultChannelBuilder

from cdc_pipeline.errors import SettingsError
from cdc_pipeline.settings.libpq import is_this_machine

_SCHEME = "sc://"
PARAMETERS = "/;"
"""Separates the address of a URL from its parameters, of which one may be the token."""


class SparkChannel(DefaultChannelBuilder):
    """Sends the token of the URL as a header. Without TLS, PySpark itself sends it to `localhost` only.

    A proxy that the environment names is not asked for a server on this machine, which it could not reach.
    The token leaves the machine in plain text only if the URL allows that; see `check_encrypted`.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        if self.is_to_this_machine:
            self.setChannelOption("grpc.enable_http_proxy", 0)

    def metadata(self) -> Iterable[tuple[str, str]]:
        plain = self.token is not None and not self.use_ssl
        return [*super().metadata(), *([("authorization", f"Bearer {self.token}")] if plain else [])]

    @property
    def secure(self) -> bool:
        """Whether the channel is encrypted."""
        return self.use_ssl

    @property
    def is_to_this_machine(self) -> bool:
        """Whether the server is on this machine."""
        return is_this_machine(self.host.strip("[]"))


def check_encrypted(url: str) -> None:
    """Raises SettingsError for plain text to another machine, unless the URL allows it.

    On the way to another machine, everything that a client sends can be read, including the token.
    """
    channel = SparkChannel(url)
    if not channel.is_to_this_machine and not channel.getDefault(SparkChannel.PARAM_USE_SSL, ""):
        raise SettingsError(
            f"the Spark Connect server {channel.endpoint} is on another machine, and would be reached in plain text",
            expected="use_ssl=true in its URL, or use_ssl=false where the network between is trusted",
            remedy=f"write spark: {_SCHEME}{channel.endpoint}{PARAMETERS}use_ssl=true",
        )
