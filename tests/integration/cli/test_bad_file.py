"""An installation can be looked at and ended while its pipeline.yml has a mistake."""

from tests.support.command_line import CommandLine


def test_what_needs_only_the_folder_works_while_the_file_has_a_mistake(cdc: CommandLine) -> None:
    assert cdc.run("setup-source").exit_code == 0
    assert cdc.run("status", "--processes").exit_code == 0
    cdc.write_settings(slice_lenght="60s")
    assert cdc.run("status", "--processes").exit_code == 0
    ended = cdc.run("down")
    assert (ended.exit_code, "down: nothing was running" in ended.errors) == (0, True), ended.errors


def test_without_an_installation_the_mistake_is_named(cdc: CommandLine) -> None:
    cdc.write_settings(slice_lenght="60s")
    for words in (("down",), ("status", "--processes")):
        ended = cdc.run(*words)
        assert (ended.exit_code, "'slice_lenght' is unknown" in ended.error) == (2, True)
    assert "cannot read" in cdc.run("down", "--config", "elsewhere.yml").error
