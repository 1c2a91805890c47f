"""What the settings of all streams of AWS have in common."""

from pathlib import Path

from pydantic import Field

from cdc_pipeline.settings.work import Frozen


class AwsStreams(Frozen):
    """How AWS is reached."""

    kind: str
    region: str | None = Field(default=None, description="default: the one of the environment or the profile")
    endpoint: str | None = Field(default=None, description="URL of the server; default: AWS")
    profile: str | None = Field(default=None, description="a profile of the file with credentials")
    credentials_file: str | None = Field(
        default=None, description="a file with credentials, as AWS's tools write it, relative to pipeline.yml"
    )

    @property
    def url(self) -> str:
        """AWS's streams have no URL of their own."""
        return ""

    def folders(self, base: Path) -> tuple[Path, ...]:
        """Streams are read by their names."""
        del base
        return ()
