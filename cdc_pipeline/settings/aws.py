"""What the settings of all streams of AWS have in common."""

from pydantic import Field

from cdc_pipeline.settings.work import SourceWithoutUrl


class AwsStreams(SourceWithoutUrl):
    """How AWS is reached."""

    region: str | None = Field(default=None, description="default: the one of the environment or the profile")
    endpoint: str | None = Field(default=None, description="URL of the server; default: AWS")
    profile: str | None = Field(default=None, description="a profile of the file with credentials")
    credentials_file: str | None = Field(
        default=None, description="a file with credentials, as AWS's tools write it, relative to pipeline.yml"
    )
